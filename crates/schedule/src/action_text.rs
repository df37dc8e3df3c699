//! The text form of an action, as `torch.distributed.pipelining` writes it, and ours for what that lacks.

use std::fmt;
use std::str::FromStr;

use brigade_topology::Stage;

use crate::action::{Action, Compute, ComputeKind, MarkerKind, MessageKind, MicroBatch, SendKind, Visit};
use crate::error::{ActionFault, ActionParseError};

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Compute(compute) => compute.fmt(f),
            Self::Overlap { forward, backward } => write!(
                f,
                "({}F{};{}B{})OVERLAP_F_B",
                forward.stage.0, forward.micro_batch, backward.stage.0, backward.micro_batch
            ),
            Self::Message { kind, stage, micro_batch } => {
                write!(f, "{}{}{micro_batch}", stage.0, kind.word())
            }
            Self::WaitSend { kind, stage, micro_batch } => {
                let word = match kind {
                    SendKind::Activation => "WAIT_SEND_F",
                    SendKind::Grad => "WAIT_SEND_B",
                };
                write!(f, "{}{word}{micro_batch}", stage.0)
            }
            Self::Marker { kind, stage } => write!(f, "{}{}", stage.0, kind.word()),
            Self::Load { stage, micro_batch } => write!(f, "{}LOAD{micro_batch}", stage.0),
            Self::ReduceCopies { stage } => write!(f, "{}REDUCE_COPIES", stage.0),
            Self::ReduceTiedGrads => f.write_str("REDUCE_TIED_GRADS"),
            Self::ReduceGrads => f.write_str("REDUCE_GRADS"),
            Self::OptimizerStep => f.write_str("OPTIMIZER_STEP"),
        }
    }
}

impl FromStr for Action {
    type Err = ActionParseError;

    /// Reads one action; blanks around it and around the parts of a pair are ignored.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        parse(trimmed).map_err(|fault| ActionParseError { text: shorten(trimmed), fault })
    }
}

/// Keeps an error message short whatever the input was.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 40;
    let mut short: String = text.chars().take(LONGEST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn parse(text: &str) -> Result<Action, ActionFault> {
    if text.is_empty() {
        return Err(ActionFault::Empty);
    }
    if let Some(rest) = text.strip_prefix('(') {
        return parse_pair(rest);
    }
    match text {
        "REDUCE_TIED_GRADS" => return Ok(Action::ReduceTiedGrads),
        "REDUCE_GRADS" => return Ok(Action::ReduceGrads),
        "OPTIMIZER_STEP" => return Ok(Action::OptimizerStep),
        _ => {}
    }
    let (stage, rest) = split_number(text)?;
    let stage = Stage(stage.ok_or(ActionFault::NoStage)?);
    let at = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
    let (word, number) = rest.split_at(at);
    let (number, left) = split_number(number)?;
    if !left.is_empty() {
        return Err(ActionFault::Trailing);
    }
    let whole_stage = match word {
        "REDUCE_COPIES" => Some(Action::ReduceCopies { stage }),
        _ => marker(word).map(|kind| Action::Marker { kind, stage }),
    };
    if let Some(action) = whole_stage {
        return if number.is_none() { Ok(action) } else { Err(ActionFault::Trailing) };
    }
    let of = |micro_batch: Option<u32>| micro_batch.map(MicroBatch).ok_or(ActionFault::NoMicroBatch);
    if let Some(kind) = compute(word) {
        return Ok(Action::Compute(Compute { kind, stage, micro_batch: of(number)? }));
    }
    if let Some(kind) = message(word) {
        return Ok(Action::Message { kind, stage, micro_batch: of(number)? });
    }
    match word {
        "WAIT_SEND_F" => Ok(Action::WaitSend { kind: SendKind::Activation, stage, micro_batch: of(number)? }),
        "LOAD" => Ok(Action::Load { stage, micro_batch: of(number)? }),
        "WAIT_SEND_B" => Ok(Action::WaitSend { kind: SendKind::Grad, stage, micro_batch: of(number)? }),
        _ => Err(ActionFault::Word),
    }
}

fn parse_pair(rest: &str) -> Result<Action, ActionFault> {
    let (pair, word) = rest.split_once(')').ok_or(ActionFault::Pair)?;
    if word != "OVERLAP_F_B" {
        return Err(ActionFault::Word);
    }
    let (first, second) = pair.split_once(';').ok_or(ActionFault::Pair)?;
    match (parse(first.trim())?, parse(second.trim())?) {
        (
            Action::Compute(Compute { kind: ComputeKind::Forward, stage, micro_batch }),
            Action::Compute(Compute {
                kind: ComputeKind::Backward,
                stage: back_stage,
                micro_batch: back_micro_batch,
            }),
        ) => Ok(Action::Overlap {
            forward: Visit { stage, micro_batch },
            backward: Visit { stage: back_stage, micro_batch: back_micro_batch },
        }),
        _ => Err(ActionFault::Pair),
    }
}

/// Splits the digits at the start off; `None` when there are none.
fn split_number(text: &str) -> Result<(Option<u32>, &str), ActionFault> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(at);
    if digits.is_empty() {
        return Ok((None, rest));
    }
    let number = digits.parse().map_err(|_| ActionFault::TooLarge)?;
    Ok((Some(number), rest))
}

fn compute(word: &str) -> Option<ComputeKind> {
    match word {
        "F" => Some(ComputeKind::Forward),
        "B" => Some(ComputeKind::Backward),
        "I" => Some(ComputeKind::InputGrad),
        "W" => Some(ComputeKind::WeightGrad),
        _ => None,
    }
}

fn message(word: &str) -> Option<MessageKind> {
    match word {
        "SEND_F" => Some(MessageKind::SendActivation),
        "RECV_F" => Some(MessageKind::RecvActivation),
        "SEND_B" => Some(MessageKind::SendGrad),
        "RECV_B" => Some(MessageKind::RecvGrad),
        _ => None,
    }
}

fn marker(word: &str) -> Option<MarkerKind> {
    match word {
        "UNSHARD" => Some(MarkerKind::Unshard),
        "RESHARD" => Some(MarkerKind::Reshard),
        "REDUCE_GRAD" => Some(MarkerKind::ReduceGrad),
        "WAIT_REDUCE_GRAD" => Some(MarkerKind::WaitReduceGrad),
        _ => None,
    }
}
