//! Sums over rows, and rows by index.

use super::over_rows;

/// Adds `bias` to every row.
pub(crate) fn add_to_rows(values: &mut [f32], bias: &[f32]) {
    over_rows(values, bias.len(), |_, values| add(values, bias));
}

vectorised! {
    fn add<'a>(values: &'a mut [f32], bias: &'a [f32]) -> () {
        for row in values.chunks_exact_mut(bias.len()) {
            for (x, &bias) in row.iter_mut().zip(bias) {
                *x += bias;
            }
        }
    }
}

/// The sum of all rows of `width` values, from the first row to the last.
pub(crate) fn sum_of_rows(values: &[f32], width: usize) -> Vec<f32> {
    let mut total = vec![0.0; width];
    add_up(values, &mut total);
    total
}

vectorised! {
    fn add_up<'a>(values: &'a [f32], total: &'a mut [f32]) -> () {
        for row in values.chunks_exact(total.len()) {
            for (total, &x) in total.iter_mut().zip(row) {
                *total += x;
            }
        }
    }
}

/// The rows of `table` at `indices`, one after the other; `None` where an index is no row.
pub(crate) fn gather(table: &[f32], width: usize, indices: &[usize]) -> Option<Vec<f32>> {
    let mut found = Vec::with_capacity(indices.len() * width);
    for &index in indices {
        found.extend_from_slice(table.get(index.checked_mul(width)?..)?.get(..width)?);
    }
    Some(found)
}

/// Adds each row of `values` to the row of `table` at its index, in order; rows whose index is none are
/// passed over, which the caller has ruled out.
pub(crate) fn scatter_add(table: &mut [f32], width: usize, indices: &[usize], values: &[f32]) {
    for (&index, row) in indices.iter().zip(values.chunks_exact(width)) {
        if let Some(target) = table.chunks_exact_mut(width).nth(index) {
            add(target, row);
        }
    }
}
