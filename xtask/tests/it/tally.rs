//! Counting tests from the output of libtest.

use xtask::tally::Tally;

fn tally(output: &str) -> Tally {
    let mut tally = Tally::default();
    output.lines().for_each(|line| tally.read(line));
    tally
}

#[test]
fn closing_lines_are_added_up() {
    let output = "\
running 2 tests
test golden::a ... ok
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s
test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s
";
    assert_eq!(tally(output), Tally { binaries: 3, empty: 1, passed: 16, failed: 2, ignored: 1 });
}

#[test]
fn other_lines_count_nothing() {
    let output = "a test printed: test result: ok. 5 passed; 0 failed\ntest result: \n5 passed; 1 failed\n";
    assert_eq!(tally(output), Tally::default());
}
