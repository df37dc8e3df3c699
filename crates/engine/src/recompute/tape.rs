//! What one micro-batch at one stage keeps of the segments that will run again, and the way back.

use std::mem;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use brigade_wire::Tree;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Device, Gradients, Int, Tensor};

use crate::error::{Cause, guard};
use crate::inject::backward_with;
use crate::message::BoundaryTensor;
use crate::module::LossFn;
use crate::random::PassContext;
use crate::skip::{SkipStore, StageSkips};
use crate::split::Deferred;
use crate::stage::{PlacedLayer, forward_layers};
use crate::tensor::{AnyTensor, LeafRole};

/// Two tensors: mostly one and the gradient with respect to it.
type Pair = (AnyTensor, AnyTensor);

/// The loss function, where it runs again with the last segment.
pub(crate) struct LossAgain<'a> {
    pub(crate) function: &'a LossFn,
    pub(crate) target: Tree<AnyTensor>,
    pub(crate) pass: PassContext,
    /// The gradient of the loss.
    pub(crate) weight: f64,
}

/// The forms of one layer that recompute needs, made once for a run of the plan.
pub(crate) struct Form {
    /// No parameter is tracked; state is the layer's own, so that a first run moves it.
    untracked: PlacedLayer,
    /// What a second run starts from; none where the layer may have state, which has to be copied before
    /// each first run.
    original: Option<Rc<PlacedLayer>>,
    is_trainable: bool,
}

impl Form {
    pub(crate) fn of(placed: &PlacedLayer) -> Self {
        /// State and frozen parameters look alike: neither wants a gradient.
        struct Kinds {
            trained: bool,
            fixed: bool,
        }
        impl ModuleVisitor for Kinds {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let trained = param.is_require_grad();
                self.trained |= trained;
                self.fixed |= !trained;
            }
            fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
                self.fixed = true;
            }
            fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, Bool>>) {
                self.fixed = true;
            }
        }
        let mut kinds = Kinds { trained: false, fixed: false };
        placed.layer.visit(&mut kinds);
        Self {
            untracked: placed.with_layer(placed.layer.clone().no_grad()),
            original: (!kinds.fixed).then(|| copy(placed)),
            is_trainable: kinds.trained,
        }
    }
}

/// A copy that shares parameters and not state.
fn copy(placed: &PlacedLayer) -> Rc<PlacedLayer> {
    Rc::new(placed.with_layer(placed.layer.valid()))
}

/// The layers of a stage.
pub(crate) struct StageLayers<'a> {
    pub(crate) layers: &'a [PlacedLayer],
    /// One for each layer, or none where nothing runs again.
    pub(crate) forms: &'a [Form],
    /// Whether the output goes to the loss function.
    pub(crate) loss_follows: bool,
}

/// One segment between its two runs: the graph is cut before it and after it.
#[derive(Debug)]
struct Rerun {
    range: Range<usize>,
    /// The layers with the parameters and the state of before the first run.
    layers: Vec<Rc<PlacedLayer>>,
    input: Tree<BoundaryTensor>,
    /// The tracked tensors before the cut, in the order of the inputs that want a gradient.
    sources: Vec<AnyTensor>,
    /// The outputs as leaves of the graph behind the segment.
    leaves: Vec<AnyTensor>,
    /// Named values that pass by the segment: their tracked tensors before the cut, and as leaves of the
    /// graph behind it.
    passing: Vec<Pair>,
}

/// The segments of one micro-batch at one stage that will run again, in forward order.
#[derive(Debug, Default)]
pub(crate) struct Tape(Vec<Rerun>);

/// What the way back through a stage gives.
#[derive(Default)]
pub(crate) struct WayBack {
    /// Gradients of the parameters; none if nothing depended on anything.
    pub(crate) parameters: Option<GradientsParams>,
    /// Gradients of the asked leaves, in order.
    pub(crate) leaves: Vec<Option<AnyTensor>>,
    /// How long the forward passes took that ran again.
    pub(crate) recompute: Option<Duration>,
}

impl Tape {
    /// Runs the layers of a stage, the segments without a graph.
    ///
    /// Where the loss follows and the last segment reaches it, the output has no graph either.
    pub(crate) fn forward(
        &mut self,
        stage: &StageLayers<'_>,
        segments: Vec<Range<usize>>,
        input: Tree<AnyTensor>,
        pass: PassContext,
        skips: &mut SkipStore<'_>,
    ) -> Result<Tree<AnyTensor>, Cause> {
        let mut value = input;
        let mut next = 0;
        for range in segments {
            value = forward_layers(&stage.layers[next..range.start], value, pass, skips)?;
            next = range.end;
            value = self.first_run(stage, range, value, pass)?;
            // Its graph would lead around the segment to what lies before it.
            if let Some(rerun) = self.0.last_mut() {
                rerun.passing = skips.cut();
            }
        }
        forward_layers(&stage.layers[next..], value, pass, skips)
    }

    /// Runs a segment without a graph and keeps what its second run needs.
    fn first_run(
        &mut self,
        stage: &StageLayers<'_>,
        range: Range<usize>,
        input: Tree<AnyTensor>,
        pass: PassContext,
    ) -> Result<Tree<AnyTensor>, Cause> {
        let mut sources = Vec::new();
        let input = input.map(|tensor: AnyTensor| {
            let role = role(tensor.is_tracked());
            if role == LeafRole::GradientWanted {
                sources.push(tensor.clone());
            }
            BoundaryTensor { tensor: tensor.detached(), role }
        });
        let forms = &stage.forms[range.clone()];
        let placed = forms.iter().zip(&stage.layers[range.clone()]);
        let layers = guard("a layer's copy for its second run", || {
            let original = |(form, placed): (&Form, _)| form.original.clone().unwrap_or_else(|| copy(placed));
            placed.map(original).collect::<Vec<_>>()
        })?;
        let constants = input.clone().map(|boundary| boundary.tensor.into_leaf(LeafRole::Constant));
        let output = forward_segment(forms.iter().map(|form| &form.untracked), constants, pass)?;
        // Without a graph nobody knows which outputs depend on what; those that turn out to depend on
        // nothing let their gradient fall when the segment runs again.
        let depends = !sources.is_empty() || forms.iter().any(|form| form.is_trainable);
        let ends_in_loss = stage.loss_follows && range.end == stage.layers.len();
        let role = role(depends && !ends_in_loss);
        let mut leaves = Vec::new();
        let mut device = None;
        let output = output.map(|tensor: AnyTensor| {
            let leaf = tensor.into_leaf(role);
            device.get_or_insert_with(|| leaf.device());
            if !ends_in_loss {
                leaves.push(leaf.clone());
            }
            leaf
        });
        if let Some(device) = device {
            sweep(&device);
        }
        self.0.push(Rerun { range, layers, input, sources, leaves, passing: Vec::new() });
        Ok(output)
    }

    /// Tells whether the last segment runs up to the end of a stage of `n_layers` layers.
    pub(crate) fn reaches(&self, n_layers: usize) -> bool {
        self.0.last().is_some_and(|rerun| rerun.range.end == n_layers)
    }

    /// Goes back through the stage: from gradients of its outputs, or from the loss where the last
    /// segment reaches it, to those of `leaves` and of the parameters of `layers`.
    pub(crate) fn backward(
        mut self,
        layers: &[PlacedLayer],
        mut pairs: Vec<Pair>,
        leaves: &[AnyTensor],
        (pass, deferred): (PassContext, Option<&Deferred>),
        mut loss: Option<LossAgain<'_>>,
    ) -> Result<WayBack, Cause> {
        let mut way = WayBack::default();
        let mut end = layers.len();
        while let Some(mut rerun) = self.0.pop() {
            let mut behind = mem::take(&mut rerun.leaves);
            let n_outputs = behind.len();
            let (before, after_cut): (Vec<_>, Vec<_>) = mem::take(&mut rerun.passing).into_iter().unzip();
            behind.extend(after_cut);
            let after = &layers[rerun.range.end..end];
            end = rerun.range.start;
            let mut of_outputs = match loss {
                Some(_) => Vec::new(),
                None => back(mem::take(&mut pairs), &behind, after, &mut way)?,
            };
            let of_passing = of_outputs.split_off(n_outputs.min(of_outputs.len()));
            pairs = rerun.second_run(&of_outputs, (pass, deferred), loss.take(), &mut way)?;
            // Last, as their users come after the segment: Burn adds the gradients of later users first.
            pairs.extend(before.into_iter().zip(of_passing).filter_map(|(source, g)| Some((source, g?))));
        }
        way.leaves = back(pairs, leaves, &layers[..end], &mut way)?;
        Ok(way)
    }
}

impl Rerun {
    /// Runs the segment again, now with a graph, and goes back through it; returns the gradients of the
    /// tensors before it.
    fn second_run(
        self,
        of_outputs: &[Option<AnyTensor>],
        (pass, deferred): (PassContext, Option<&Deferred>),
        loss: Option<LossAgain<'_>>,
        way: &mut WayBack,
    ) -> Result<Vec<Pair>, Cause> {
        if loss.is_none() && of_outputs.iter().all(Option::is_none) {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        let Self { layers, input, sources, .. } = self;
        let layers = guard("a layer's copy for its second run", || {
            let train = |placed: &Rc<PlacedLayer>| placed.with_layer(placed.layer.clone().train());
            layers.iter().map(train).collect::<Vec<_>>()
        })?;
        let mut leaves = Vec::new();
        let input = input.map(|BoundaryTensor { tensor, role }| {
            let leaf = tensor.into_leaf(role);
            if role == LeafRole::GradientWanted {
                leaves.push(leaf.clone());
            }
            leaf
        });
        let run = || forward_segment(&layers, input, pass);
        let output = match deferred {
            Some(deferred) => deferred.during(run),
            None => run(),
        }?;
        let pairs = match loss {
            Some(LossAgain { function, target, pass, weight }) => {
                let loss = guard("the loss function", || pass.during(|| function(output, target)))??;
                vec![loss_pair(loss.value, weight)?]
            }
            None => outputs_again(output, of_outputs, &layers)?,
        };
        let spent = started.elapsed();
        way.recompute = Some(way.recompute.unwrap_or_default() + spent);
        let of_inputs = back(pairs, &leaves, &layers, way)?;
        Ok(sources.into_iter().zip(of_inputs).filter_map(|(source, g)| Some((source, g?))).collect())
    }
}

/// Runs the layers of a segment, none of which stashes or uses a named value.
fn forward_segment<'a>(
    layers: impl IntoIterator<Item = &'a PlacedLayer>,
    input: Tree<AnyTensor>,
    pass: PassContext,
) -> Result<Tree<AnyTensor>, Cause> {
    forward_layers(layers, input, pass, &mut SkipStore::new(&StageSkips::default()))
}

/// The outputs of a second run with the gradients that came for those of the first one.
fn outputs_again(
    output: Tree<AnyTensor>,
    of_outputs: &[Option<AnyTensor>],
    layers: &[PlacedLayer],
) -> Result<Vec<Pair>, Cause> {
    let mut tensors = Vec::new();
    output.map(|tensor: AnyTensor| tensors.push(tensor));
    let differs = || {
        let labels = layers.iter().map(|placed| placed.label.to_string()).collect::<Vec<_>>();
        Cause::RecomputeDiffers { layers: labels.join(", ") }
    };
    if tensors.len() != of_outputs.len() {
        return Err(differs());
    }
    let mut pairs = Vec::new();
    for (tensor, gradient) in tensors.into_iter().zip(of_outputs) {
        let Some(gradient) = gradient else { continue };
        if tensor.shape() != gradient.shape() || tensor.dtype() != gradient.dtype() {
            return Err(differs());
        }
        pairs.push((tensor, gradient.clone()));
    }
    Ok(pairs)
}

/// The loss with the gradient that its backward pass starts from.
pub(crate) fn loss_pair(loss: Tensor<1>, weight: f64) -> Result<Pair, Cause> {
    let gradient = Tensor::<1>::full([1], weight, (&loss.device().inner(), loss.dtype()));
    let loss = AnyTensor::new(loss).map_err(Cause::Gradient)?;
    Ok((loss, AnyTensor::new(gradient).map_err(Cause::Gradient)?))
}

/// One backward pass of a piece of graph: collects the gradients of its layers' parameters and returns
/// those of its leaves.
fn back(
    pairs: Vec<Pair>,
    leaves: &[AnyTensor],
    layers: &[PlacedLayer],
    way: &mut WayBack,
) -> Result<Vec<Option<AnyTensor>>, Cause> {
    let gradients = guard("the backward pass", || backward_with(pairs))?;
    let Some(mut gradients) = gradients.map_err(Cause::Gradient)? else {
        return Ok(leaves.iter().map(|_| None).collect());
    };
    let of_leaves = leaves.iter().map(|leaf| leaf.take_gradient(&mut gradients)).collect();
    let parameters = way.parameters.get_or_insert_with(GradientsParams::new);
    let mut collect = Collect { gradients: &mut gradients, parameters };
    for placed in layers {
        placed.layer.visit(&mut collect);
    }
    Ok(of_leaves)
}

struct Collect<'a> {
    gradients: &'a mut Gradients,
    parameters: &'a mut GradientsParams,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        if let Some(gradient) = param.val().grad_remove(self.gradients) {
            self.parameters.register::<D>(param.id, gradient);
        }
    }
}

/// Lets Burn forget the operations of a first run: it notes each of them, tracked or not, in some 2 KiB,
/// and frees notes that lead nowhere in the next backward pass of any graph.
fn sweep(device: &Device) {
    let _ = Tensor::<1>::zeros([1], device).require_grad().backward();
}

fn role(gradient_wanted: bool) -> LeafRole {
    if gradient_wanted { LeafRole::GradientWanted } else { LeafRole::Constant }
}
