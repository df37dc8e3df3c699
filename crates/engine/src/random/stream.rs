//! The random numbers of one call: any of them from its place, in any order.

use super::context::PassContext;
use super::philox::{self, LANES, halves};

/// The random numbers that one call draws in one forward pass.
///
/// A stream is a function from a place to a number; it has no state, and two streams with different
/// passes or calls have nothing in common. It is not for secrets.
///
/// # Source
/// Philox4x32-10 (Salmon et al., 2011). Pass and call become the key by two blocks chained under the
/// seed; that they are chained and not added keeps neighbouring steps, micro-batches, layers and calls
/// apart.
///
/// # Examples
/// ```
/// use brigade_engine::random::{PassContext, Stream};
///
/// let stream = Stream::of(PassContext::training(1234, 0), 0);
/// let mut words = [0; 10];
/// stream.fill(0, &mut words);
/// let mut end = [0; 3];
/// stream.fill(7, &mut end);
/// assert_eq!(words[7..], end);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    /// The upper half of every counter.
    salt: [u32; 2],
}

/// Words of one round of blocks.
const CHUNK: usize = 4 * LANES;

impl Stream {
    /// The stream of the next call in the forward pass that runs on this thread.
    ///
    /// Calls are counted from 0 in each forward pass of a layer. Outside of any pass, the calls of this
    /// thread are counted from its start under the default base seed; run the code in
    /// [`PassContext::during`] for other numbers.
    #[must_use]
    pub fn next() -> Self {
        PassContext::next_stream()
    }

    /// The stream of call number `call`, from 0, in a pass.
    #[must_use]
    pub fn of(pass: PassContext, call: u64) -> Self {
        let PassContext { seed, step, micro_batch, layer, stage: _, is_training } = pass;
        let (seed_high, seed_low) = halves(seed);
        let absorb = |[a, b, c, d]: [u32; 4], first: u64, second: u64| {
            let ((e, f), (g, h)) = (halves(first), halves(second));
            philox::block([a ^ e, b ^ f, c ^ g, d ^ h], [seed_low, seed_high])
        };
        let kind = if is_training { [0; 4] } else { [u32::MAX, 0, 0, 0] };
        let place = absorb(absorb(absorb(kind, 0, 0), step, micro_batch), layer, call);
        Self { key: [place[0], place[1]], salt: [place[2], place[3]] }
    }

    /// Writes the random words from place `start` on into `words`.
    pub fn fill(&self, start: u64, words: &mut [u32]) {
        let mut place = start;
        let mut rest = words;
        while !rest.is_empty() {
            let (chunk, inside) = (place / width(CHUNK), place % width(CHUNK));
            let fresh = self.chunk(chunk);
            let from = usize::try_from(inside).unwrap_or(0);
            let n = rest.len().min(CHUNK - from);
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&fresh[from..from + n]);
            rest = later;
            place = place.wrapping_add(width(n));
        }
    }

    /// The words from place `chunk * CHUNK` on.
    pub(crate) fn chunk(&self, chunk: u64) -> [u32; CHUNK] {
        let mut counter = [[0; LANES], [0; LANES], [self.salt[0]; LANES], [self.salt[1]; LANES]];
        let first = chunk.wrapping_mul(width(LANES));
        for (lane, place) in (0..width(LANES)).zip(0..LANES) {
            let (high, low) = halves(first.wrapping_add(lane));
            counter[0][place] = low;
            counter[1][place] = high;
        }
        let blocks = philox::blocks(counter, self.key);
        let mut words = [0; CHUNK];
        for (words, lanes) in words.chunks_exact_mut(LANES).zip(&blocks) {
            words.copy_from_slice(lanes);
        }
        words
    }

    /// Number of words in a chunk.
    pub(crate) const CHUNK: usize = CHUNK;
}

fn width(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_place_matters_except_the_stage() {
        let pass = PassContext::training(1, 2).micro_batch(3).layer(4);
        let stream = Stream::of(pass, 5);
        let others = [
            Stream::of(PassContext { seed: 2, ..pass }, 5),
            Stream::of(PassContext { seed: 1 << 32, ..pass }, 5),
            Stream::of(PassContext { step: 3, ..pass }, 5),
            Stream::of(PassContext { step: 2 | 1 << 40, ..pass }, 5),
            Stream::of(pass.micro_batch(2), 5),
            Stream::of(pass.layer(5), 4),
            Stream::of(pass.layer(5), 5),
            Stream::of(pass, 6),
            Stream::of(PassContext { step: 3, micro_batch: 2, ..pass }, 5),
            Stream::of(PassContext { is_training: false, ..pass }, 5),
        ];
        for (i, other) in others.iter().enumerate() {
            assert_ne!(&stream, other, "other {i}");
        }
        assert_eq!(Stream::of(pass.stage(brigade_topology::Stage(9)), 5), stream);
    }

    #[test]
    fn any_part_of_a_stream_is_that_part_of_the_whole() {
        let stream = Stream::of(PassContext::training(9, 9), 0);
        let mut whole = vec![0; 5 * CHUNK];
        stream.fill(0, &mut whole);
        for start in [0, 1, CHUNK - 1, CHUNK, CHUNK + 3] {
            for n in [0, 1, 4, CHUNK, 2 * CHUNK + 1] {
                let mut part = vec![0; n];
                stream.fill(width(start), &mut part);
                assert_eq!(part, whole[start..start + n], "{n} from {start}");
            }
        }
        assert_eq!(whole.iter().collect::<std::collections::BTreeSet<_>>().len(), whole.len());
    }
}
