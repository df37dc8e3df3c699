//! Philox4x32-10: a block of random numbers from a key and a counter, with no state between.

/// Blocks that are computed side by side, so that the compiler can use vector instructions.
pub(super) const LANES: usize = 8;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four words for each of [`LANES`] counters, lane by lane.
///
/// # Source
/// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); its known answers are the test.
pub(super) fn blocks(mut counter: [[u32; LANES]; 4], mut key: [u32; 2]) -> [[u32; LANES]; 4] {
    for _ in 0..ROUNDS {
        let [c0, c1, c2, c3] = &mut counter;
        for lane in 0..LANES {
            let (high0, low0) = product(MULTIPLIERS[0], c0[lane]);
            let (high1, low1) = product(MULTIPLIERS[1], c2[lane]);
            c0[lane] = high1 ^ c1[lane] ^ key[0];
            c1[lane] = low1;
            c2[lane] = high0 ^ c3[lane] ^ key[1];
            c3[lane] = low0;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// One block.
pub(super) fn block(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    blocks(counter.map(|word| [word; LANES]), key).map(|lanes| lanes[0])
}

/// High and low half.
fn product(a: u32, b: u32) -> (u32, u32) {
    halves(u64::from(a) * u64::from(b))
}

/// High and low half of a number.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "each half is what is wanted; conversions that check would keep the loop from vectorising"
)]
pub(super) fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_published_ones() {
        let zeros = block([0; 4], [0; 2]);
        assert_eq!(zeros, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = block([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = block([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn lanes_do_not_mix() {
        let mut counter = [[7; LANES]; 4];
        counter[1] = std::array::from_fn(|lane| u32::try_from(lane).expect("small"));
        let all = blocks(counter, [1, 2]);
        for lane in 0..LANES {
            let one = block(counter.map(|words| words[lane]), [1, 2]);
            assert_eq!(all.map(|words| words[lane]), one);
        }
    }
}
