//! Criterion's output as a table.

use xtask::bench::Table;

const OUTPUT: &str = "\
running 0 tests

Benchmarking balanced/1000
Benchmarking balanced/1000: Warming up for 3.0000 s
balanced/1000           time:   [10.500 µs 11.000 µs 11.250 µs]
                        thrpt:  [88.889 Melem/s 90.909 Melem/s 95.238 Melem/s]
                 change: [-1.0000% +0.1000% +1.2000%] (p = 0.80 > 0.05)
                        time:   [-2.2388% -1.3356% -0.4419%] (p = 0.01 < 0.05)
                        thrpt:  [+0.4438% +1.3537% +2.2901%]
Found 4 outliers among 100 measurements (4.00%)
a very long name of a group/and of a function/1000
                        time:   [1.0000 ms 2.0000 ms 3.0000 ms]
";

#[test]
fn times_are_collected_with_their_names() {
    let mut table = Table::default();
    OUTPUT.lines().for_each(|line| table.read(line));
    assert_eq!(
        table.to_string(),
        "| benchmark | low | estimate | high | throughput |\n\
         | --- | --- | --- | --- | --- |\n\
         | balanced/1000 | 10.500 µs | 11.000 µs | 11.250 µs | 90.909 Melem/s |\n\
         | a very long name of a group/and of a function/1000 | 1.0000 ms | 2.0000 ms | 3.0000 ms |  |\n"
    );
}

#[test]
fn output_without_times_gives_no_rows() {
    let mut table = Table::default();
    "running 0 tests\n\ntest result: ok. 0 passed\ntime: none\n".lines().for_each(|line| table.read(line));
    assert_eq!(table.rows(), []);
}
