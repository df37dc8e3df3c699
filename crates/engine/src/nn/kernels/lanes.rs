//! Sums and maxima of a row in 64 lanes, which is the order that vector registers like.

/// Four registers of the widest kind: enough to hide the latency of an addition.
const LANES: usize = 64;

/// Values in the widest register.
pub(super) const REGISTER: usize = 16;

#[inline(always)]
fn fold(lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = lanes;
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            lanes[i] = join(lanes[i], lanes[i + n]);
        }
        n /= 2;
    }
    lanes[0]
}

/// The sum of `term` over a row.
#[inline(always)]
pub(super) fn sum(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += term(x);
        }
    }
    let (chunks, rest) = rest.as_chunks::<REGISTER>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += term(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += term(x);
    }
    fold(lanes, |a, b| a + b)
}

/// The sum of `term` over two rows of equal length.
#[inline(always)]
pub(super) fn sum_of_two(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += term(a, b);
        }
    }
    let (a_chunks, a_rest) = a_rest.as_chunks::<REGISTER>();
    let (b_chunks, b_rest) = b_rest.as_chunks::<REGISTER>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += term(a, b);
        }
    }
    for ((lane, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += term(a, b);
    }
    fold(lanes, |a, b| a + b)
}

/// Replaces every value by `term` of it and gives the sum of the new ones.
#[inline(always)]
pub(super) fn replace_and_sum(row: &mut [f32], term: impl Fn(f32) -> f32) -> f32 {
    // Two passes: 64 lanes of a long `term` at once would not fit the registers.
    for x in &mut *row {
        *x = term(*x);
    }
    sum(row, |x| x)
}

/// The largest value of a row; NaN values are passed over, `-inf` where there is no other.
#[inline(always)]
pub(super) fn max(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, x);
        }
    }
    let (chunks, rest) = rest.as_chunks::<REGISTER>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, x);
    }
    fold(lanes, larger)
}
