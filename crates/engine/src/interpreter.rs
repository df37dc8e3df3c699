//! Runs the instruction stream of one rank: knows buffers, messages and stages, no schedule by name.

use std::collections::BTreeMap;
use std::mem;
use std::time::Instant;

use brigade_schedule::{BufferId, Instruction, LoadPart, MicroBatch};
use brigade_topology::{PipeRank, Rank, Stage};
use brigade_wire::Tree;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::error::{Cause, StepError, guard};
use crate::gradients::OrderedSum;
use crate::loss::Loss;
use crate::message::{Direction, Message, Tag};
use crate::module::LossFn;
use crate::normaliser::Factors;
use crate::random::{Numbering, PassContext};
use crate::recompute::{Form, LossAgain, Recompute, StageLayers, Tape, loss_pair};
use crate::route::{Route, site};
use crate::skip::{ByLane, SkipStore, Traffic, leaf};
use crate::split::Deferred;
use crate::stage::{RankModule, StageModule};
use crate::tensor::{AnyTensor, LeafRole};
use crate::timing::Timing;
use crate::world::RankHandle;

/// What a run of the plan is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    /// Forward and backward; gradients are `scale` times what the factors of the batch say.
    Train { scale: f64 },
    /// Forward with losses.
    Evaluate,
    /// Forward with losses and outputs.
    EvaluateAndPredict,
    /// Forward with outputs.
    Predict,
}

/// The micro-batches of one run, as far as this rank feeds them.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) inputs: Vec<Option<Tree<AnyTensor>>>,
    pub(crate) targets: Vec<Option<Tree<AnyTensor>>>,
    /// What each micro-batch counts in a training step.
    pub(crate) factors: Factors,
}

/// What one micro-batch keeps at one stage.
#[derive(Default)]
struct Slot {
    input: Option<Tree<AnyTensor>>,
    target: Option<Tree<AnyTensor>>,
    /// Inputs whose sender wants a gradient, in message order.
    leaves: Vec<AnyTensor>,
    /// Outputs that a gradient will come back for, in message order.
    outputs: Vec<AnyTensor>,
    /// The loss, and the gradient to start from.
    loss: Option<(Tensor<1>, f64)>,
    /// The segments that run again in the backward pass.
    tape: Tape,
    outgoing: Option<Message>,
    output_gradients: Option<Vec<Option<AnyTensor>>>,
    input_gradients: Option<Vec<Option<AnyTensor>>>,
    /// Weight gradients that wait, where the plan splits backward passes.
    deferred: Option<Deferred>,
    /// What the first half of a split backward pass gave for the parameters.
    first_half: Option<GradientsParams>,
}

/// What a run leaves behind on one rank.
pub(crate) struct RunResult {
    /// Losses by micro-batch, on the rank of the last stage.
    pub(crate) losses: Vec<Option<Loss>>,
    /// Outputs by micro-batch, on the rank of the last stage, when they were asked for.
    pub(crate) outputs: Vec<Option<Message>>,
    /// Sums over the micro-batches.
    pub(crate) gradients: GradientsParams,
    pub(crate) timing: Timing,
}

/// The state of one run of a plan on one rank.
pub(crate) struct Interpreter<'a> {
    rank: &'a RankHandle,
    route: &'a Route,
    module: &'a RankModule,
    loss: &'a LossFn,
    mode: Mode,
    numbering: Numbering,
    /// What runs again in the backward pass, if anything does.
    recompute: Option<&'a Recompute>,
    /// The forms of the layers of each stage, where some run again.
    forms: BTreeMap<Stage, Vec<Form>>,
    batch: Batch,
    slots: Vec<Slot>,
    sums: BTreeMap<Stage, OrderedSum<'a>>,
    traffic: Traffic<'a>,
    result: RunResult,
}

/// The checker has proved that a buffer holds what an instruction takes from it.
const PROVED: &str = "the checker proved that the buffer is filled before it is used";

impl<'a> Interpreter<'a> {
    pub(crate) fn new(
        rank: &'a RankHandle,
        route: &'a Route,
        module: &'a RankModule,
        loss: &'a LossFn,
        (mode, numbering): (Mode, Numbering),
        batch: Batch,
    ) -> Self {
        let n_micro_batches = route.plan.n_micro_batches();
        let n_micro_batches = usize::try_from(n_micro_batches).unwrap_or(usize::MAX);
        let mut slots = Vec::new();
        let n_buffers = usize::try_from(route.plan.n_buffers(route.pipe_rank)).unwrap_or(usize::MAX);
        slots.resize_with(n_buffers, Slot::default);
        let mut losses = Vec::new();
        losses.resize_with(n_micro_batches, || None);
        let mut outputs = Vec::new();
        outputs.resize_with(n_micro_batches, || None);
        Self {
            rank,
            route,
            module,
            loss,
            mode,
            numbering,
            recompute: None,
            forms: BTreeMap::new(),
            batch,
            slots,
            sums: route.summed.iter().map(|(&stage, order)| (stage, OrderedSum::over(order))).collect(),
            traffic: Traffic::new(rank, &route.lanes, &route.skips),
            result: RunResult { losses, outputs, gradients: GradientsParams::new(), timing: Timing::start() },
        }
    }

    /// Lets layers run again in the backward passes of this run.
    pub(crate) fn recomputing(mut self, recompute: &'a Recompute) -> Result<Self, Cause> {
        if recompute.is_on() {
            self.recompute = Some(recompute);
            let forms = |stage: &StageModule| (stage.stage, stage.layers.iter().map(Form::of).collect());
            let all = || self.module.stages.iter().map(forms).collect();
            self.forms = guard("a layer's copy for recompute", all)?;
        }
        Ok(self)
    }

    /// Adds the gradients of this run to those of runs before it.
    pub(crate) fn starting_from(mut self, gradients: GradientsParams) -> Self {
        self.result.gradients = gradients;
        self
    }

    /// Runs every instruction up to the end of the batch, whose collectives are left to the engine.
    pub(crate) fn run(mut self) -> Result<RunResult, StepError> {
        let route = self.route;
        for instruction in route.plan.instructions(route.pipe_rank) {
            let hub = self.rank.hub();
            if let Some(first) = hub.first_failure() {
                return Err(first.clone());
            }
            let started = Instant::now();
            let stopped = match *instruction {
                Instruction::SendActivation { buffer, to, .. } => {
                    let message = self.slot(buffer).outgoing.take().expect(PROVED);
                    self.send(instruction, to, message)
                }
                Instruction::SendGrad { stage, micro_batch, buffer, to } => {
                    let message = self.gradient_message(stage, micro_batch, buffer);
                    self.send(instruction, to, message)
                }
                Instruction::RecvActivation { buffer, from, .. } => {
                    self.receive(instruction, from).and_then(|message| {
                        let peer = self.route.ranks[from.index()];
                        self.fill(peer, buffer, message).map_err(|c| self.fail(instruction, c))
                    })
                }
                Instruction::RecvGrad { buffer, from, .. } => {
                    self.receive(instruction, from).and_then(|message| {
                        let peer = self.route.ranks[from.index()];
                        self.fill_gradients(peer, buffer, message).map_err(|c| self.fail(instruction, c))
                    })
                }
                Instruction::ForwardPass { stage, micro_batch, buffer } => {
                    self.forward_pass(instruction, stage, micro_batch, buffer)
                }
                Instruction::BackwardPass { stage, micro_batch, buffer } => {
                    self.backward_pass(instruction, stage, micro_batch, buffer).and_then(|()| {
                        let added = self.weight_grad(stage, micro_batch, buffer);
                        added.map_err(|cause| self.fail(instruction, cause))
                    })
                }
                Instruction::InputGrad { stage, micro_batch, buffer } => {
                    self.backward_pass(instruction, stage, micro_batch, buffer)
                }
                _ => self.local(instruction).map_err(|cause| self.fail(instruction, cause)),
            };
            stopped?;
            self.result.timing.record(instruction, started.elapsed());
        }
        Ok(self.result)
    }

    /// Runs an instruction that talks to no other rank.
    fn local(&mut self, instruction: &Instruction) -> Result<(), Cause> {
        match *instruction {
            Instruction::LoadMicroBatch { micro_batch, buffer, part, .. } => {
                self.load(micro_batch, buffer, part);
                Ok(())
            }
            Instruction::WeightGrad { stage, micro_batch, buffer } => {
                self.weight_grad(stage, micro_batch, buffer)
            }
            Instruction::HandOverActivation { buffer, to_buffer, .. } => {
                let message = self.slot(buffer).outgoing.take().expect(PROVED);
                let here = self.rank.rank();
                self.fill(here, to_buffer, message)
            }
            Instruction::HandOverGrad { stage, micro_batch, buffer, to_buffer } => {
                let message = self.gradient_message(stage, micro_batch, buffer);
                let here = self.rank.rank();
                self.fill_gradients(here, to_buffer, message)
            }
            // The end of the batch, which the engine does when all micro-batches are through.
            _ => Ok(()),
        }
    }

    fn slot(&mut self, buffer: BufferId) -> &mut Slot {
        &mut self.slots[buffer.index()]
    }

    fn is_last(&self, stage: Stage) -> bool {
        stage.0.saturating_add(1) == self.route.plan.placement().n_stages()
    }

    fn is_training(&self) -> bool {
        matches!(self.mode, Mode::Train { .. })
    }

    fn fail(&self, instruction: &Instruction, cause: Cause) -> StepError {
        self.rank.hub().fail(StepError::new(site(self.rank.rank(), instruction), cause))
    }

    fn send(&self, instruction: &Instruction, to: PipeRank, message: Message) -> Result<(), StepError> {
        let link = self.route.senders.get(&to).expect("the plan lists the links that it uses");
        let peer = self.route.ranks[to.index()];
        self.rank.hub().send(link, peer, message, || site(self.rank.rank(), instruction))
    }

    /// Receives the message that the plan has at this place.
    fn receive(&self, instruction: &Instruction, from: PipeRank) -> Result<Message, StepError> {
        let link = self.route.receivers.get(&from).expect("the plan lists the links that it uses");
        let peer = self.route.ranks[from.index()];
        let message = self.rank.hub().receive(link, peer, || site(self.rank.rank(), instruction))?;
        match Tag::expected(instruction) {
            Some(expected) if expected != message.tag => Err(self.fail(
                instruction,
                Cause::UnexpectedMessage {
                    peer,
                    expected: expected.to_string(),
                    found: message.tag.to_string(),
                },
            )),
            _ => Ok(message),
        }
    }

    fn load(&mut self, micro_batch: MicroBatch, buffer: BufferId, part: LoadPart) {
        let at = index(micro_batch);
        if part != LoadPart::Targets {
            let input = self.batch.inputs[at].take();
            let input = input.expect("the engine fetched every micro-batch that this rank loads");
            self.slot(buffer).input = Some(self.constant(input));
        }
        if part != LoadPart::Inputs && self.mode != Mode::Predict {
            let target = self.batch.targets[at].take();
            let target = target.expect("the engine fetched every micro-batch that this rank loads");
            self.slot(buffer).target = Some(self.constant(target));
        }
    }

    /// Data from outside: no gradient is wanted for it.
    fn constant(&self, tree: Tree<AnyTensor>) -> Tree<AnyTensor> {
        let training = self.is_training();
        tree.map(|tensor| if training { tensor.into_leaf(LeafRole::Constant) } else { tensor.detached() })
    }

    /// Puts a received value into a slot: in training its tensors become leaves of a new graph.
    fn fill(&mut self, peer: Rank, buffer: BufferId, message: Message) -> Result<(), Cause> {
        let tree = message.into_tree().map_err(|source| Cause::Message { peer, source })?;
        let training = self.is_training();
        let slot = self.slot(buffer);
        slot.input = Some(leaf(tree, training, &mut slot.leaves));
        Ok(())
    }

    fn fill_gradients(&mut self, peer: Rank, buffer: BufferId, message: Message) -> Result<(), Cause> {
        let gradients = message.into_gradients().map_err(|source| Cause::Message { peer, source })?;
        let slot = self.slot(buffer);
        let expected = slot.outputs.len();
        let found = gradients.as_ref().map_or(0, Vec::len);
        match gradients {
            Some(gradients) if found == expected => {
                slot.output_gradients = Some(gradients);
                Ok(())
            }
            _ => Err(Cause::GradientCount { peer, expected, found }),
        }
    }

    fn gradient_message(&mut self, stage: Stage, micro_batch: MicroBatch, buffer: BufferId) -> Message {
        let gradients = self.slot(buffer).input_gradients.take().expect(PROVED);
        Message::gradients(Tag { stage, micro_batch, direction: Direction::Backward }, gradients)
    }

    /// A forward pass, with what goes to and comes from other stages than its neighbours.
    fn forward_pass(
        &mut self,
        instruction: &Instruction,
        stage: Stage,
        micro_batch: MicroBatch,
        buffer: BufferId,
    ) -> Result<(), StepError> {
        let route = self.route;
        let rank = self.rank.rank();
        let here = || site(rank, instruction);
        let training = self.is_training();
        let mut skips = SkipStore::new(route.skips.stage(stage));
        self.traffic.receive_values(stage, micro_batch, training, &mut skips, &here)?;
        let pass = self.numbering.pass(stage, micro_batch);
        let output = self.forward((stage, micro_batch, buffer), pass, &mut skips);
        let output = output.map_err(|cause| self.fail(instruction, cause))?;
        let leaving = skips.into_leaving();
        self.traffic.send_values(stage, micro_batch, training, &leaving, &here)?;
        let output = route.skips.stage(stage).with_carried(output, &leaving);
        let finished = self.finish_forward((stage, micro_batch, buffer), output, pass);
        finished.map_err(|cause| self.fail(instruction, cause))
    }

    fn forward(
        &mut self,
        (stage, micro_batch, buffer): (Stage, MicroBatch, BufferId),
        pass: PassContext,
        skips: &mut SkipStore<'_>,
    ) -> Result<Tree<AnyTensor>, Cause> {
        let module = self.module.stage(stage).expect("the placement gave this stage to this rank");
        let input = self.slot(buffer).input.take().expect(PROVED);
        let input = skips.unpack_carried(input);
        let segments = match self.recompute {
            Some(recompute) => recompute.segments(stage, micro_batch, &module.layers)?,
            None => Vec::new(),
        };
        let forms = self.forms.get(&stage).map_or(&[][..], Vec::as_slice);
        let layers = StageLayers { layers: &module.layers, forms, loss_follows: self.is_last(stage) };
        let mut tape = Tape::default();
        let deferred = (self.route.splits && self.is_training()).then(Deferred::default);
        let run = || tape.forward(&layers, segments, input, pass, skips);
        let output = match &deferred {
            Some(deferred) => deferred.during(run),
            None => run(),
        }?;
        let slot = self.slot(buffer);
        slot.deferred = deferred;
        slot.tape = tape;
        Ok(output)
    }

    /// Makes a message of a stage's output, or the loss.
    fn finish_forward(
        &mut self,
        (stage, micro_batch, buffer): (Stage, MicroBatch, BufferId),
        output: Tree<AnyTensor>,
        pass: PassContext,
    ) -> Result<(), Cause> {
        let tag = Tag { stage, micro_batch, direction: Direction::Forward };
        if !self.is_last(stage) {
            let (message, outputs) = Message::activations(tag, output);
            let slot = self.slot(buffer);
            slot.outgoing = Some(message);
            slot.outputs = outputs;
            return Ok(());
        }
        if matches!(self.mode, Mode::Predict | Mode::EvaluateAndPredict) {
            let (message, _) = Message::activations(tag, output.clone());
            self.result.outputs[index(micro_batch)] = Some(message);
        }
        if self.mode == Mode::Predict {
            return Ok(());
        }
        let target = self.slot(buffer).target.take().expect(PROVED);
        let module = self.module.stage(stage).expect("the placement gave this stage to this rank");
        if self.slot(buffer).tape.reaches(module.layers.len()) {
            self.slot(buffer).target = Some(target.clone());
        }
        let pass = self.numbering.loss(pass);
        let loss = guard("the loss function", || pass.during(|| (self.loss)(output, target)))??;
        let factor = loss.factor(&self.batch.factors, index(micro_batch))?;
        if let Mode::Train { scale } = self.mode {
            self.slot(buffer).loss = Some((loss.value.clone(), scale * factor));
        }
        self.result.losses[index(micro_batch)] = Some(loss.without_graph());
        Ok(())
    }

    /// A backward pass without waiting weight gradients, with what goes to and comes from other stages
    /// than its neighbours.
    fn backward_pass(
        &mut self,
        instruction: &Instruction,
        stage: Stage,
        micro_batch: MicroBatch,
        buffer: BufferId,
    ) -> Result<(), StepError> {
        let rank = self.rank.rank();
        let here = || site(rank, instruction);
        let from_users = self.traffic.receive_gradients(stage, micro_batch, &here)?;
        let leaves = self.traffic.take_leaves(stage, micro_batch);
        let gradients = self.backward((stage, micro_batch, buffer), from_users, &leaves);
        let gradients = gradients.map_err(|cause| self.fail(instruction, cause))?;
        self.traffic.send_gradients(stage, micro_batch, gradients, &here)
    }

    /// Returns the gradients of `lane_leaves`.
    fn backward(
        &mut self,
        (stage, micro_batch, buffer): (Stage, MicroBatch, BufferId),
        from_users: Vec<(AnyTensor, AnyTensor)>,
        lane_leaves: &ByLane<AnyTensor>,
    ) -> Result<ByLane<Option<AnyTensor>>, Cause> {
        let module = self.module.stage(stage).expect("the placement gave this stage to this rank");
        let pass = self.numbering.pass(stage, micro_batch);
        let (function, loss_pass) = (self.loss, self.numbering.loss(pass));
        let slot = self.slot(buffer);
        let leaves = mem::take(&mut slot.leaves);
        let outputs = mem::take(&mut slot.outputs);
        let tape = mem::take(&mut slot.tape);
        let deferred = slot.deferred.clone();
        let (mut pairs, again) = match (slot.loss.take(), slot.target.take()) {
            // What counts nothing has no gradient, not even that of a mean over nothing, which is no number.
            (Some((_, 0.0)), _) => (Vec::new(), None),
            (Some((_, weight)), Some(target)) => {
                (Vec::new(), Some(LossAgain { function, target, pass: loss_pass, weight }))
            }
            (Some((loss, factor)), None) => (vec![loss_pair(loss, factor)?], None),
            (None, _) => {
                let gradients = slot.output_gradients.take().expect(PROVED);
                let pairs = outputs.into_iter().zip(gradients).filter_map(|(output, g)| Some((output, g?)));
                (pairs.collect(), None)
            }
        };
        pairs.extend(from_users);
        let n_leaves = leaves.len();
        let leaves: Vec<AnyTensor> =
            leaves.into_iter().chain(lane_leaves.values().flatten().cloned()).collect();
        let way = tape.backward(&module.layers, pairs, &leaves, (pass, deferred.as_ref()), again)?;
        if let Some(spent) = way.recompute {
            self.result.timing.record_recompute(stage, spent);
        }
        let slot = self.slot(buffer);
        let mut of_leaves = way.leaves.into_iter();
        slot.input_gradients = Some(of_leaves.by_ref().take(n_leaves).collect());
        slot.first_half = way.parameters;
        let of_lane = |(&lane, leaves): (&usize, &Vec<AnyTensor>)| {
            (lane, of_leaves.by_ref().take(leaves.len()).collect())
        };
        Ok(lane_leaves.iter().map(of_lane).collect())
    }

    /// Computes the weight gradients that wait, if any do, and adds the micro-batch to the sum.
    fn weight_grad(&mut self, stage: Stage, micro_batch: MicroBatch, buffer: BufferId) -> Result<(), Cause> {
        let slot = self.slot(buffer);
        let mut gradients = slot.first_half.take();
        if let (Some(deferred), Some(gradients)) = (slot.deferred.take(), &mut gradients) {
            guard("the backward pass", || deferred.settle(gradients))?;
        }
        let module = self.module.stage(stage).expect("the placement gave this stage to this rank");
        let sum = self.sums.get_mut(&stage).expect("the plan's own backward passes are summed");
        sum.add(&mut self.result.gradients, module, micro_batch, gradients);
        Ok(())
    }
}

/// Past the end of every list where the platform cannot address it.
fn index(micro_batch: MicroBatch) -> usize {
    usize::try_from(micro_batch.0).unwrap_or(usize::MAX)
}
