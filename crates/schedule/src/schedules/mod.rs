//! The schedules, one file each, and their names.

pub(crate) mod dual_pipe_v;
mod forward_only;
mod gpipe;
mod interleaved;
mod looped_bfs;
mod names;
mod one_f_one_b;

pub use dual_pipe_v::dual_pipe_v;
pub use forward_only::forward_only;
pub use gpipe::gpipe;
pub use interleaved::interleaved_one_f_one_b;
pub use looped_bfs::looped_bfs;
pub use names::Schedule;
pub use one_f_one_b::one_f_one_b;
