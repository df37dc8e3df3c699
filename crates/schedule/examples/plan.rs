//! Shows a schedule: what it costs, and when each rank does what.
//!
//! cargo run -p brigade-schedule --example plan -- --schedule 1f1b --ranks 4 --micro-batches 8

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use brigade_schedule::{
    Auto, AutoFound, Candidate, Capacity, CheckedPlan, Costs, Effort, LinkCosts, PipeRank, Placement, Plan,
    Schedule, Shape, StageCosts, StageModel, Timeline, auto, check, least_capacity, lower, replay,
};
use clap::Parser;

#[derive(Parser)]
#[command(about = "Makes a pipeline schedule, proves it sound, and shows what it would take")]
struct Args {
    /// Name of the schedule, with :V for V stages a rank where that is a choice, as in interleaved:2
    #[arg(long, default_value = "1f1b")]
    schedule: Schedule,
    /// Search the best plan for the costs instead, over one stage a rank and two, dealt out or in a V
    #[arg(long)]
    auto: bool,
    /// With --auto: micro-batches whose activations a rank may hold; as many as there are ranks when left out
    #[arg(long)]
    memory: Option<u32>,
    /// Read the plan from a CSV file, one line a rank, instead
    #[arg(long, value_name = "FILE")]
    plan_csv: Option<PathBuf>,
    /// Pipeline ranks (DeepSpeed calls them stages)
    #[arg(long, alias = "stages", default_value_t = 4)]
    ranks: u32,
    /// Micro-batches of a batch
    #[arg(long, default_value_t = 8)]
    micro_batches: u32,
    /// Times of a stage (with --auto: of all stages of a rank) for one micro-batch: forward, input gradient, weight gradient [, recompute]
    #[arg(long, value_delimiter = ',', default_value = "1,1,1")]
    costs: Vec<f64>,
    /// Share of the shorter of two overlapped passes that the overlap hides, from 0 to 1 [default: no overlap]
    #[arg(long)]
    overlap: Option<f64>,
    /// Time of a message from rank to rank
    #[arg(long, default_value_t = 0.0)]
    latency: f64,
    /// Messages that a link holds; the least that works, or the number of visits of a rank, when left out
    #[arg(long)]
    capacity: Option<u32>,
    /// Write a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a trace for Chrome or Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the plan as CSV, as PyTorch's tools read it
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(report) => {
            #[expect(clippy::print_stdout, reason = "an example shows its result")]
            {
                print!("{report}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "an example shows its error")]
            {
                eprintln!("error: {error}");
            }
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<String, Box<dyn Error>> {
    let [forward_s, input_grad_s, weight_grad_s, ref recompute @ ..] = args.costs[..] else {
        return Err("--costs needs at least three numbers, as in 1,1,1".into());
    };
    let recompute_s = recompute.first().copied().unwrap_or(0.0);
    let mut stage =
        StageCosts { forward_s, input_grad_s, weight_grad_s, recompute_s, ..StageCosts::default() };
    let mut found = String::new();
    let plan = match &args.plan_csv {
        Some(path) => Plan::from_csv(&std::fs::read_to_string(path).map_err(named(path))?)?,
        None if args.auto => {
            let best = search(args, &stage)?;
            let name = best.schedule.map_or("found by search".to_owned(), |schedule| schedule.to_string());
            found = format!("best plan: {name}, {:.1} % above the lower bound\n", 100.0 * best.gap());
            stage = shared(&stage, f64::from(best.plan.placement().stages_per_rank()));
            best.plan
        }
        None => args.schedule.plan(Shape { n_ranks: args.ranks, n_micro_batches: args.micro_batches })?,
    };
    let program = lower(&plan)?;
    let least = least_capacity(&program)?;
    let ample = plan.n_micro_batches().saturating_mul(plan.placement().stages_per_rank());
    let capacity = Capacity(args.capacity.unwrap_or(ample.max(least.0)));
    let checked = check(program, capacity)?;
    let mut costs = Costs::uniform(plan.placement().n_stages(), stage);
    costs.overlap_hides = args.overlap;
    costs.link = LinkCosts { latency_s: args.latency, bytes_per_s: None };
    let timeline = replay(&checked, &costs)?;
    write(args.svg.as_deref(), || timeline.to_svg())?;
    write(args.trace.as_deref(), || timeline.to_chrome_trace())?;
    write(args.csv.as_deref(), || plan.to_csv())?;
    let shown = timeline.to_text() + &found + &summary(&checked, least, &timeline);
    let busiest = timeline.ranks().iter().map(|rank| rank.busy_s).fold(0.0, f64::max);
    assert!(timeline.makespan_s() >= busiest, "no rank is busy for longer than the whole takes");
    Ok(shown)
}

/// The best plan over one stage a rank and two, at the same memory.
fn search(args: &Args, rank: &StageCosts) -> Result<AutoFound, Box<dyn Error>> {
    let p = args.ranks;
    let placements = [Placement::linear(p)?, Placement::looped(p, 2)?, Placement::v(p)?];
    let candidate = |placement: Placement| {
        let n_virtual = placement.stages_per_rank();
        let costs = shared(rank, f64::from(n_virtual));
        let model = StageModel {
            forward_s: costs.forward_s,
            input_grad_s: costs.input_grad_s + costs.recompute_s,
            weight_grad_s: costs.weight_grad_s,
            activation: u64::from(2 / n_virtual),
            weight_grad: u64::from(2 / n_virtual),
        };
        Candidate { placement, stages: placement.ranks().map(|_| model).collect() }
    };
    let limit = 2 * u64::from(args.memory.unwrap_or(p));
    let problem = Auto {
        n_micro_batches: args.micro_batches,
        latency_s: args.latency,
        memory_limits: placements[0].ranks().map(|_| limit).collect(),
        candidates: placements.into_iter().map(candidate).collect(),
    };
    Ok(auto(&problem, Effort::THOROUGH)?)
}

/// The costs of one of `n_virtual` equal stages of a rank.
fn shared(rank: &StageCosts, n_virtual: f64) -> StageCosts {
    StageCosts {
        forward_s: rank.forward_s / n_virtual,
        input_grad_s: rank.input_grad_s / n_virtual,
        weight_grad_s: rank.weight_grad_s / n_virtual,
        recompute_s: rank.recompute_s / n_virtual,
        ..*rank
    }
}

fn summary(checked: &CheckedPlan, least: Capacity, timeline: &Timeline) -> String {
    let peaks: Vec<String> =
        timeline.ranks().iter().map(|rank| rank.peak_in_flight.to_string()).take(32).collect();
    let buffers: Vec<String> = (0..checked.placement().n_ranks())
        .map(|rank| checked.n_buffers(PipeRank(rank)).to_string())
        .take(32)
        .collect();
    format!(
        "placement {}, {} micro-batches, sound from {} messages a link\n\
         makespan {}, bubble {} wall ({:.1} %), {} span; idle {:.1} % on average\n\
         in flight {}; buffers {}\n",
        checked.placement(),
        checked.n_micro_batches(),
        least.0,
        timeline.makespan_s(),
        timeline.bubble_wall_s(),
        100.0 * timeline.bubble_wall_share(),
        timeline.bubble_span_s(),
        100.0 * timeline.idle_share_mean(),
        peaks.join(" "),
        buffers.join(" "),
    )
}

fn write(path: Option<&Path>, text: impl FnOnce() -> String) -> Result<(), Box<dyn Error>> {
    if let Some(path) = path {
        std::fs::write(path, text()).map_err(named(path))?;
    }
    Ok(())
}

/// Puts the path before an error of the file system.
fn named(path: &Path) -> impl FnOnce(std::io::Error) -> Box<dyn Error> + use<> {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}").into()
}
