//! Measures every layer of a list, for cuts that balance time or keep to a memory limit.

use std::time::{Duration, Instant};

use brigade_partition::{LayerInfo, LayerProfile};
use brigade_wire::Tree;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::{PipelineModule, PipelineModuleBuilder};
use crate::any_layer::AnyLayer;
use crate::error::{Cause, ProfileError, guard};
use crate::inject::backward_with;
use crate::layers::{Layers, resolve_ties};
use crate::random::PassContext;
use crate::skip::{SkipStore, Skips, StageSkips};
use crate::stage::{PlacedLayer, forward_layers};
use crate::tensor::{AnyTensor, LeafRole};
use crate::value::Value;
use crate::world::DEADLINE_DEFAULT;

/// How to measure the layers of a list.
///
/// # Examples
/// ```
/// use brigade_engine::ProfileOptions;
///
/// let options = ProfileOptions { n_repeats: 9, ..ProfileOptions::default() };
/// assert_eq!((options.n_warm_up, options.n_optimizer_values), (1, 2));
/// ```
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    /// Where to run; the embedded CPU backend by default.
    pub device: Device,
    /// Walks through the list before any is measured.
    pub n_warm_up: u32,
    /// Walks that are measured; the median of each layer counts.
    pub n_repeats: u32,
    /// Values that the optimizer keeps for each trained parameter: 2 for Adam, 0 for plain SGD.
    pub n_optimizer_values: u32,
    /// How long to wait for the turn to build a layer.
    pub deadline: Duration,
    /// Tells how many bytes are in use, where something counts them, such as an allocator. Without it a
    /// layer is taken to keep its output for its backward pass.
    pub bytes_in_use: Option<fn() -> u64>,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self {
            device: Device::flex(),
            n_warm_up: 1,
            n_repeats: 5,
            n_optimizer_values: 2,
            deadline: DEADLINE_DEFAULT,
            bytes_in_use: None,
        }
    }
}

impl<I: Value, O: Value> Layers<I, O> {
    /// Measures every layer: time of its forward and backward pass, and bytes.
    ///
    /// It walks the whole list once for each measurement, with the stashed values alive, each layer on the
    /// output of the one before it; give an input of the size of a micro-batch. Entries that stash or use
    /// a value are measured like layers. Give what it returns to
    /// [`PipelineModuleBuilder::profiled`](crate::PipelineModuleBuilder::profiled) on every rank, the same
    /// to all: two measurements differ, and so would the cuts. It runs on the caller's thread and its
    /// rayon pool: inside a world of one rank it has the pool that a rank has.
    ///
    /// # Units
    /// Nanoseconds and bytes.
    ///
    /// # Errors
    /// [`ProfileError`]: the list cannot be built, or a layer fails.
    ///
    /// # Source
    /// torchgpipe, `balance/profile.py`, `profile_times` and `profile_sizes`.
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::partition::{Options, partition};
    /// use brigade_engine::{Layers, ProfileOptions};
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::{Device, Tensor};
    ///
    /// let layers = Layers::new()
    ///     .stash("x", |x: &Tensor<2>| x.clone())
    ///     .with(|d| LinearConfig::new(64, 256).init(d), |l, x: Tensor<2>| l.forward(x))
    ///     .with(|d| LinearConfig::new(256, 64).init(d), |l, x: Tensor<2>| l.forward(x))
    ///     .pop("x", |y: Tensor<2>, x: Tensor<2>| y + x);
    /// let input = Tensor::<2>::ones([8, 64], &Device::flex());
    /// let infos = layers.profile(input, &ProfileOptions::default())?;
    /// let profile = infos[1].profile.expect("measured");
    /// assert!(profile.time_ns > 0);
    /// assert_eq!(profile.output_bytes, 8 * 256 * 4);
    /// assert_eq!(profile.fixed_bytes, 4 * (64 * 256 + 256) * 4);
    /// let cuts = partition(&"profile".parse()?, &infos, 2, &Options::default())?;
    /// assert_eq!(cuts.n_stages(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn profile(&self, input: I, options: &ProfileOptions) -> Result<Vec<LayerInfo>, ProfileError> {
        let specs = resolve_ties(self.specs()).map_err(|error| ProfileError::Build(error.into()))?;
        let skips = Skips::new(&specs).map_err(|error| ProfileError::Build(error.into()))?;
        let never = |_: O, (): ()| Tensor::<1>::zeros([1], &Device::flex());
        let builder: PipelineModuleBuilder<I, O, ()> = PipelineModule::builder(self, never);
        let builder = PipelineModuleBuilder { specs, ..builder.device(options.device.clone()) };
        let device = options.device.clone().inner().autodiff();
        let layers = builder.build_layers(0..builder.specs.len(), &device, options.deadline)?;
        let input = input.into_tree().map_err(|source| Cause::DataValue { what: "input", source })?;
        let mut walk = Walk {
            layers: &layers,
            skips: &skips.within_one_stage(layers.len()),
            device: &device,
            bytes_in_use: options.bytes_in_use,
            times: vec![Vec::new(); layers.len()],
            bytes: vec![(0, 0); layers.len()],
        };
        for _ in 0..options.n_warm_up {
            walk.run(input.clone())?;
        }
        walk.times.iter_mut().for_each(Vec::clear);
        for _ in 0..options.n_repeats.max(1) {
            walk.run(input.clone())?;
        }
        let Walk { times, bytes, .. } = walk;
        let info =
            |((placed, mut times), (output_bytes, in_flight_bytes)): ((&PlacedLayer, Vec<Duration>), _)| {
                times.sort_unstable();
                let median = times.get(times.len() / 2).copied().unwrap_or_default();
                let time_ns = u64::try_from(median.as_nanos()).unwrap_or(u64::MAX);
                let (fixed_bytes, n_trained) = parameters(&placed.layer, options.n_optimizer_values);
                let profile = LayerProfile { time_ns, fixed_bytes, in_flight_bytes, output_bytes };
                LayerInfo::new(placed.label.type_name, n_trained).measured(profile)
            };
        Ok(layers.iter().zip(times).zip(bytes).map(info).collect())
    }
}

/// Walks through a list, one layer's graph at a time.
struct Walk<'a> {
    layers: &'a [PlacedLayer],
    skips: &'a StageSkips,
    device: &'a Device,
    bytes_in_use: Option<fn() -> u64>,
    times: Vec<Vec<Duration>>,
    /// Of the output, and of what is kept for the backward pass.
    bytes: Vec<(u64, u64)>,
}

impl Walk<'_> {
    fn run(&mut self, input: Tree<AnyTensor>) -> Result<(), Cause> {
        let pass = PassContext::training(0, 0);
        let mut skips = SkipStore::new(self.skips);
        let mut value = input.map(|tensor: AnyTensor| tensor.into_leaf(LeafRole::Constant));
        for (index, placed) in self.layers.iter().enumerate() {
            let in_use = self.in_use();
            let started = Instant::now();
            let output = forward_layers(std::slice::from_ref(placed), value, pass, &mut skips)?;
            self.wait();
            let forward = started.elapsed();
            let kept = self.in_use().zip(in_use).map(|(after, before)| after.saturating_sub(before));
            let mut output_bytes = 0_u64;
            let mut pairs = Vec::new();
            output.for_each(|tensor| {
                let n_elements = u64::try_from(tensor.shape().num_elements()).unwrap_or(u64::MAX);
                let size = u64::try_from(tensor.dtype().size()).unwrap_or(u64::MAX);
                output_bytes = output_bytes.saturating_add(n_elements.saturating_mul(size));
                if tensor.is_tracked() {
                    pairs.push(tensor.clone());
                }
            });
            let pairs = pairs.into_iter().map(|tensor| Ok((tensor.clone(), ones_like(&tensor)?)));
            let pairs = pairs.collect::<Result<Vec<_>, Cause>>()?;
            let started = Instant::now();
            guard("the backward pass", || backward_with(pairs))?.map_err(Cause::Gradient)?;
            self.wait();
            self.times[index].push(forward.saturating_add(started.elapsed()));
            self.bytes[index] = (output_bytes, kept.unwrap_or(output_bytes));
            skips.cut();
            value = output.map(|tensor: AnyTensor| {
                let tracked = tensor.is_tracked();
                let role = if tracked { LeafRole::GradientWanted } else { LeafRole::Constant };
                tensor.into_leaf(role)
            });
        }
        Ok(())
    }

    fn in_use(&self) -> Option<u64> {
        self.bytes_in_use.map(|bytes_in_use| bytes_in_use())
    }

    /// Waits until the device has done what it was asked: it may compute later than it is called.
    fn wait(&self) {
        // A device that cannot wait tells nothing of the time; what it computes is used all the same.
        let _ = self.device.sync();
    }
}

fn ones_like(tensor: &AnyTensor) -> Result<AnyTensor, Cause> {
    let data = TensorData::ones::<f32, _>(tensor.shape()).convert_dtype(tensor.dtype());
    AnyTensor::from_data(data, &tensor.device().inner()).map_err(Cause::Gradient)
}

/// Bytes of weights, and for those that are trained of a gradient and what the optimizer keeps; and how
/// many are trained.
fn parameters(layer: &AnyLayer, n_optimizer_values: u32) -> (u64, u64) {
    struct Sum {
        bytes: u64,
        n_trained: u64,
        copies: u64,
    }
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let n_elements = u64::try_from(value.shape().num_elements()).unwrap_or(u64::MAX);
            let size = u64::try_from(value.dtype().size()).unwrap_or(u64::MAX);
            let trained = param.is_require_grad();
            let copies = if trained { self.copies } else { 1 };
            self.n_trained = self.n_trained.saturating_add(if trained { n_elements } else { 0 });
            let bytes = n_elements.saturating_mul(size).saturating_mul(copies);
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }
    let mut sum = Sum { bytes: 0, n_trained: 0, copies: u64::from(n_optimizer_values).saturating_add(2) };
    layer.visit(&mut sum);
    (sum.bytes, sum.n_trained)
}
