//! The program of every rank: train, evaluate now and then, generate a sample.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_engine::partition::Report;
use brigade_engine::{PipelineEngine, PipelineModule, RankHandle, StepReport, TrainConfig, World};
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor};

use crate::corpus::{Corpus, EVAL_BATCHES};
use crate::error::{AppError, RankError, UsageError};
use crate::model::{ModelConfig, cross_entropy, gpt};
use crate::options::Options;
use crate::progress::{Progress, Shown};
use crate::sample::generate;

type Engine = PipelineEngine<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;

/// What the training gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) source: String,
    pub(crate) n_characters: (usize, usize),
    pub(crate) n_symbols: usize,
    pub(crate) split: Report,
    pub(crate) n_parameters: u64,
    pub(crate) steps: Vec<Step>,
    /// Mean loss on the text held back, after the last step.
    pub(crate) loss_evaluation: f64,
    pub(crate) sample: String,
}

/// What is kept of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) loss: f64,
    /// The whole call, the choice of the text and the agreement of the ranks among it.
    pub(crate) elapsed: Duration,
    pub(crate) bubble_measured: f64,
    pub(crate) bubble_planned: f64,
}

/// Trains on as many ranks as the schedule takes for the stages.
///
/// # Errors
/// [`AppError`]: the first failure of any rank.
pub(crate) fn train(options: &Options, corpus: Corpus) -> Result<Outcome, AppError> {
    let [n_ranks, n_threads] = [options.n_ranks()?, options.threads].map(to_usize);
    let world = World::local(n_ranks).and_then(|world| world.threads_per_rank(n_threads));
    let world = world.map_err(UsageError::from)?;
    let (options, corpus) = (Arc::new(options.clone()), Arc::new(corpus));
    let mut outcomes = world.run(move |rank| run_rank(&rank, &options, &corpus))?;
    // All ranks know the same; rank 0 has shown it.
    Ok(outcomes.swap_remove(0))
}

fn run_rank(rank: &RankHandle, options: &Options, corpus: &Corpus) -> Result<Outcome, RankError> {
    let config = ModelConfig {
        n_symbols: corpus.n_symbols(),
        n_blocks: to_usize(options.layers),
        width: to_usize(options.width),
        n_heads: to_usize(options.heads),
        seq: to_usize(options.seq),
    };
    let schedule = options.schedule;
    let module = PipelineModule::builder(&gpt(config), cross_entropy)
        .partition(options.partition.clone())
        .schedule(move |shape| schedule.plan(shape))
        .micro_batches(options.micro_batches)
        .base_seed(options.seed)
        .build(rank)?;
    let (split, n_parameters) = (module.split()?, module.n_parameters());
    let optimizer = AdamWConfig::new().with_beta_2(0.99).with_weight_decay(0.01).init();
    let mut engine = PipelineEngine::new(module, optimizer, TrainConfig::new(0.0))?;

    let progress = (rank.rank().index() == 0).then(|| Progress::new(options.steps));
    let mut steps = Vec::new();
    let mut loss_evaluation = f64::NAN;
    for step in 0..options.steps {
        let done = train_step(&mut engine, options, corpus, step)?;
        steps.push(done);
        let n_done = step + 1;
        if let Some(progress) = &progress {
            progress.step(&Shown {
                step: n_done,
                loss: done.loss,
                tokens_per_s: options.tokens_per_step() / done.elapsed.as_secs_f64(),
                bubble_measured: done.bubble_measured,
                bubble_planned: done.bubble_planned,
            })?;
        }
        let due = options.eval_every > 0 && n_done.is_multiple_of(options.eval_every);
        if due || n_done == options.steps {
            loss_evaluation = evaluate(&mut engine, options, corpus, n_done)?;
            if let Some(progress) = &progress {
                progress.evaluation(n_done, loss_evaluation)?;
            }
        }
    }
    if let Some(progress) = &progress {
        progress.finish();
    }
    let sample = generate(&mut engine, corpus, options)?;
    Ok(Outcome {
        source: corpus.source().to_owned(),
        n_characters: corpus.n_characters(),
        n_symbols: corpus.n_symbols(),
        split,
        n_parameters,
        steps,
        loss_evaluation,
        sample,
    })
}

fn train_step(engine: &mut Engine, options: &Options, corpus: &Corpus, step: u32) -> Result<Step, RankError> {
    engine.set_learning_rate(options.learning_rate_at(step))?;
    let started = Instant::now();
    let mut pairs = (0..options.micro_batches)
        .map(|micro_batch| corpus.training_pair(options.seed, step, micro_batch, options.micro_batch));
    let report = engine.train_batch(&mut pairs)?;
    let StepReport { loss, times, .. } = report.ok_or(RankError::DataEnded { step })?;
    let elapsed = started.elapsed();
    let timeline = engine.replay(&times).map_err(|cause| RankError::Replay(Box::new(cause)))?;
    // Both are the mean over the ranks of the idle share of the whole step.
    let (bubble_measured, bubble_planned) = (times.bubble_wall(), timeline.idle_share_mean());
    Ok(Step { loss, elapsed, bubble_measured, bubble_planned })
}

fn evaluate(engine: &mut Engine, options: &Options, corpus: &Corpus, step: u32) -> Result<f64, RankError> {
    let mut pairs =
        (0..EVAL_BATCHES).map(|micro_batch| corpus.evaluation_pair(micro_batch, options.micro_batch));
    let report = engine.eval_batch(&mut pairs, EVAL_BATCHES)?;
    report.map(|report| report.loss).ok_or(RankError::DataEnded { step })
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
