//! Loops over rows of f32 values, fused and vectorised: what the fused operations run on a CPU.
//!
//! Every function takes slices in row-major order whose lengths the caller has checked. Sums run in a fixed
//! order over a fixed number of lanes and never contract a product and a sum, so a function gives the same
//! bits on every processor and with any number of threads.

/// A function whose body is compiled for each kind of vector registers and runs with the widest kind that
/// this processor has.
///
/// It becomes a structure of its arguments, since that, unlike a closure, can be told to be inlined always,
/// which is what compiles it for those registers.
macro_rules! vectorised {
    (fn $name:ident<$a:lifetime>($($argument:ident: $type:ty),* $(,)?) -> $output:ty $body:block) => {
        fn $name<$a>($($argument: $type),*) -> $output {
            struct Work<$a> {
                $($argument: $type),*
            }
            impl<$a> pulp::NullaryFnOnce for Work<$a> {
                type Output = $output;
                #[inline(always)]
                fn call(self) -> $output {
                    let Self { $($argument),* } = self;
                    $body
                }
            }
            pulp::Arch::new().dispatch(Work { $($argument),* })
        }
    };
}

mod cross_entropy;
mod gelu;
mod lanes;
mod math;
mod norm;
mod rows;
mod softmax;

pub(crate) use cross_entropy::{cross_entropy, cross_entropy_backward};
pub(crate) use gelu::{gelu, gelu_alone, gelu_backward};
pub(crate) use math::narrow;
pub(crate) use norm::{Centre, norm, norm_backward};
pub(crate) use rows::{add_to_rows, gather, scatter_add, sum_of_rows};
pub(crate) use softmax::{causal_softmax, causal_softmax_backward};

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

/// Fewer values than this are not worth a second thread.
const VALUES_A_THREAD: usize = 1 << 14;

/// The mean of some values.
pub(crate) fn mean(values: &[f32]) -> f32 {
    lanes::sum(values, |x| x) * math::reciprocal(values.len())
}

/// How many rows of `width` values a thread of the current pool gets, where there are `n` values in all.
fn rows_a_thread(n: usize, width: usize) -> usize {
    let n_rows = n / width.max(1);
    let n_threads = rayon::current_num_threads().min(n / VALUES_A_THREAD).max(1);
    n_rows.div_ceil(n_threads).max(1)
}

/// Calls `work` with the index of the first row and with the rows, in as many pieces as the current pool has
/// threads; at once where it has one.
fn over_rows(values: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = rows_a_thread(values.len(), width);
    if rows * width >= values.len() {
        work(0, values);
        return;
    }
    values.par_chunks_mut(rows * width).enumerate().for_each(|(piece, chunk)| work(piece * rows, chunk));
}

/// As [`over_rows`], over two arrays with the same number of rows.
fn over_rows_of_two(
    (first, width): (&mut [f32], usize),
    (second, second_width): (&mut [f32], usize),
    work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    let rows = rows_a_thread(first.len(), width);
    if rows * width >= first.len() {
        work(0, first, second);
        return;
    }
    first
        .par_chunks_mut(rows * width)
        .zip(second.par_chunks_mut(rows * second_width))
        .enumerate()
        .for_each(|(piece, (a, b))| work(piece * rows, a, b));
}
