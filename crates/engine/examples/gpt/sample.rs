//! Text from the trained model, one character after the other.

use brigade_engine::{PipelineEngine, StepError};
use burn::tensor::{Int, Tensor};
use rand::RngExt;

use crate::corpus::{Corpus, Draw, keyed, to_tensor};
use crate::options::Options;

/// Goes on from the prompt; every rank gets the same text.
///
/// # Errors
/// [`StepError`] when the pipeline fails.
pub(crate) fn generate(
    engine: &mut PipelineEngine<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>,
    corpus: &Corpus,
    options: &Options,
) -> Result<String, StepError> {
    let mut ids = corpus.encode(&options.prompt);
    if ids.is_empty() {
        ids = corpus.encode("\n");
    }
    let seq = usize::try_from(options.seq).unwrap_or(usize::MAX);
    let mut rng = keyed(options.seed, Draw::Sample);
    for _ in 0..options.sample {
        let context = &ids[ids.len().saturating_sub(seq)..];
        let input = to_tensor(context, [1, context.len()]);
        let Some(outputs) = engine.predict_batch(&mut std::iter::once(input), 1)? else { break };
        let logits: Vec<f64> =
            outputs.into_iter().flat_map(|o| o.into_data().iter::<f64>().collect::<Vec<_>>()).collect();
        let last = &logits[logits.len().saturating_sub(corpus.n_symbols())..];
        ids.push(draw(last, options.temperature, rng.random()));
    }
    Ok(ids.into_iter().map(|id| corpus.character(id)).collect())
}

/// The id at which the summed likelihood passes `at`, from 0 to 1; the first one for logits that are no
/// numbers.
fn draw(logits: &[f64], temperature: f64, at: f64) -> u8 {
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| ((logit - highest) / temperature).exp()).collect();
    let mut left = at * weights.iter().sum::<f64>();
    let place = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    u8::try_from(place.unwrap_or(0)).unwrap_or(0)
}
