//! The schedules, one file each, and their names.

mod data_parallel;
pub(crate) mod dual;
pub(crate) mod dual_pipe;
pub(crate) mod dual_pipe_v;
mod forward_on;
pub(crate) mod forward_only;
pub(crate) mod gpipe;
pub(crate) mod interleaved;
mod interleaved_zb;
pub(crate) mod looped_bfs;
mod names;
pub(crate) mod one_f_one_b;
mod seq_one_f_one_b;
mod v_half;
mod v_min;
mod zb_h1;
mod zb_h2;
mod zb_v;
mod zero_bubble;

pub use data_parallel::data_parallel;
pub use dual_pipe::dual_pipe;
pub use dual_pipe_v::dual_pipe_v;
pub use forward_on::forward_only_on;
pub use forward_only::forward_only;
pub use gpipe::gpipe;
pub use interleaved::interleaved_one_f_one_b;
pub use interleaved_zb::interleaved_zb;
pub use looped_bfs::looped_bfs;
pub use names::Schedule;
pub use one_f_one_b::one_f_one_b;
pub use seq_one_f_one_b::seq_one_f_one_b;
pub use v_half::v_half;
pub use v_min::v_min;
pub use zb_h1::zb_h1;
pub use zb_h2::zb_h2;
pub use zb_v::zb_v;
