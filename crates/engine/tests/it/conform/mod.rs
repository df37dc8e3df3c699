//! The transparency corpus: one list of models, each under every schedule, against its unsplit run.
//!
//! A small part runs with the other tests; `BRIGADE_CONFORM=all` (`cargo xtask conform`) runs all of it.

mod convolution;
mod dropout;
mod frozen;
mod gpt;
mod mixture;
mod mlp;
mod residual;
mod run;
mod tied;

use brigade_engine::schedule::{Schedule, Shape};

use self::run::{Case, Model, compare, unsplit};

/// How much of the corpus to run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    Smoke,
    All,
}

impl Extent {
    fn of_environment() -> Self {
        match std::env::var("BRIGADE_CONFORM") {
            Ok(value) if value == "all" => Self::All,
            Ok(value) => panic!("BRIGADE_CONFORM is {value:?}; `all` is the one value that it may have"),
            Err(_) => Self::Smoke,
        }
    }

    fn micro_batches(self) -> Vec<u32> {
        match self {
            Self::Smoke => vec![1, 4],
            Self::All => (1..=8).collect(),
        }
    }

    fn ranks(self) -> Vec<u32> {
        match self {
            Self::Smoke => vec![1, 3],
            Self::All => (1..=4).collect(),
        }
    }

    /// Every schedule that trains; the smoke part keeps one of each kind.
    fn schedules(self) -> Vec<Schedule> {
        let trains = |schedule: &Schedule| *schedule != Schedule::ForwardOnly;
        let one_of_each = ["gpipe", "1f1b", "interleaved:2", "looped-bfs:2", "zb-h1", "zb-v", "dual-pipe"];
        let all = Schedule::ALL.into_iter().filter(trains);
        match self {
            Self::Smoke => all.filter(|s| one_of_each.contains(&s.to_string().as_str())).collect(),
            Self::All => all.collect(),
        }
    }
}

/// Runs one model under all schedules and sizes, and says how many comparisons that were.
#[expect(clippy::print_stdout, reason = "says how much was compared, and which shapes a schedule refuses")]
fn conform<M: Model>(model: M) {
    let extent = Extent::of_environment();
    let mut n_compared = 0;
    let mut refused = Vec::new();
    for n_micro_batches in extent.micro_batches() {
        let case = Case { n_micro_batches, n_steps: 2 };
        let reference = unsplit(model, case);
        reference.must_have_learned();
        for n_ranks in extent.ranks() {
            for schedule in extent.schedules().into_iter().filter(|&schedule| model.runs_under(schedule)) {
                if schedule.plan(Shape { n_ranks, n_micro_batches }).is_err() {
                    refused.push(format!("{schedule} p={n_ranks} m={n_micro_batches}"));
                    continue;
                }
                compare(model, schedule, n_ranks, case, &reference);
                n_compared += 1;
            }
        }
    }
    println!("{}: {n_compared} comparisons; no such plan: {}", model.name(), refused.join(", "));
    assert!(n_compared > 10, "{n_compared} comparisons");
}

#[test]
fn mlp() {
    conform(mlp::Mlp);
}

#[test]
fn gpt() {
    conform(gpt::Gpt);
}

#[test]
fn tied_gpt() {
    conform(tied::TiedGpt);
}

#[test]
fn residual_connections_across_stages() {
    conform(residual::Residual);
}

#[test]
fn convolution_with_batch_norm() {
    conform(convolution::ConvNet);
}

#[test]
fn mixture_with_an_unused_branch() {
    conform(mixture::Mixture);
}

#[test]
fn frozen_layers_parameters_and_adapters() {
    conform(frozen::Frozen);
}

#[test]
fn dropout() {
    conform(dropout::Noise { recompute_every: 0 });
}

#[test]
fn dropout_that_is_recomputed() {
    conform(dropout::Noise { recompute_every: 2 });
}
