//! Counts the tests that really ran, from the closing lines of libtest.

/// What the test binaries of one command reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Test binaries and documentation runs that closed with a result.
    pub binaries: usize,
    /// Those among them that ran no test at all.
    pub empty: usize,
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that were not run because they are marked so.
    pub ignored: usize,
}

impl Tally {
    /// Reads one line of output; any line but a closing one changes nothing.
    pub fn read(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let Some((_verdict, counts)) = counts.split_once(". ") else { return };
        let count = |word: &str| -> usize {
            let of = |part: &str| part.trim().strip_suffix(word)?.trim().parse().ok();
            counts.split(';').find_map(of).unwrap_or(0)
        };
        let (passed, failed) = (count("passed"), count("failed"));
        self.binaries += 1;
        self.empty += usize::from(passed + failed == 0);
        self.passed += passed;
        self.failed += failed;
        self.ignored += count("ignored");
    }
}
