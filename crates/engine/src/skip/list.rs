//! Named values in a typed list of layers.

use super::{SkipKind, SkipOp};
use crate::layers::{LayerSpec, Layers};
use crate::value::Value;

impl<I: Value, O: Value> Layers<I, O> {
    /// Keeps a value, made from what the list gives so far, for later layers to use by its name.
    ///
    /// The list goes on with what it gave. Every entry that uses the value, by [`Layers::pop`] or
    /// [`Layers::peek`], may stand in any later stage; its gradient comes back from all of them. Names are
    /// unique in a list (see [`Layers::then_namespaced`]) and are checked, with the types, when a module is
    /// built. Each of these entries counts as a layer without parameters.
    ///
    /// Gradients have the same bits at every split where each use takes the value once. Those of an entry
    /// that takes it several times, as `y * x.clone() + x` does, add up in an order that depends on the
    /// cuts, within rounding.
    ///
    /// # Source
    /// torchgpipe, `skip/skippable.py`, `stash` and `pop`; several users and other values than tensors
    /// are own.
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::{Layer, Layers};
    /// use burn::tensor::Tensor;
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # #[derive(Module, Debug)]
    /// # struct Dense {
    /// #     linear: Linear,
    /// # }
    /// # impl Layer for Dense {
    /// #     type Input = Tensor<2>;
    /// #     type Output = Tensor<2>;
    /// #     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
    /// #         self.linear.forward(x)
    /// #     }
    /// # }
    ///
    /// let dense = |device: &_| Dense { linear: LinearConfig::new(4, 4).init(device) };
    /// let layers = Layers::new()
    ///     .stash("input", |x: &Tensor<2>| x.clone())
    ///     .layer(dense)
    ///     .layer(dense)
    ///     .pop("input", |y: Tensor<2>, x: Tensor<2>| y + x);
    /// assert_eq!(layers.len(), 4);
    /// ```
    #[must_use]
    pub fn stash<S: Value>(
        self,
        name: impl Into<String>,
        make: impl Fn(&O) -> S + Send + Sync + 'static,
    ) -> Self {
        self.append([LayerSpec::stash(name, make)])
    }

    /// Combines what the list gives so far with a stashed value, for the last time.
    #[must_use]
    pub fn pop<S: Value, P: Value>(
        self,
        name: impl Into<String>,
        combine: impl Fn(O, S) -> P + Send + Sync + 'static,
    ) -> Layers<I, P> {
        self.append([LayerSpec::pop(name, combine)])
    }

    /// Combines what the list gives so far with a stashed value, which later entries may use again.
    ///
    /// The last use of a value may be a peek: the list tells which one it is, and the value is gone
    /// after it.
    #[must_use]
    pub fn peek<S: Value, P: Value>(
        self,
        name: impl Into<String>,
        combine: impl Fn(O, S) -> P + Send + Sync + 'static,
    ) -> Layers<I, P> {
        self.append([LayerSpec::peek(name, combine)])
    }

    /// Appends another list whose named values get `namespace/` before their names.
    ///
    /// So one list with a skip inside may be appended many times, under another namespace each time.
    ///
    /// # Source
    /// torchgpipe, `skip/namespace.py`, `Namespace`.
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::Layers;
    /// use burn::tensor::Tensor;
    ///
    /// let twice = Layers::new()
    ///     .stash("x", |x: &Tensor<1>| x.clone())
    ///     .pop("x", |y: Tensor<1>, x: Tensor<1>| y + x);
    /// let layers = Layers::new().then_namespaced("first", twice.clone()).then_namespaced("second", twice);
    /// assert!(format!("{:?}", layers.specs()[2]).contains("second/x"));
    /// ```
    #[must_use]
    #[doc(alias = "Namespace")]
    pub fn then_namespaced<P: Value>(self, namespace: &str, other: Layers<O, P>) -> Layers<I, P> {
        let specs: Vec<_> = other.specs().iter().map(|spec| spec.clone().namespaced(namespace)).collect();
        self.append(specs)
    }
}

impl LayerSpec {
    /// The entry of [`Layers::stash`].
    pub fn stash<O: Value, S: Value>(
        name: impl Into<String>,
        make: impl Fn(&O) -> S + Send + Sync + 'static,
    ) -> Self {
        Self::skip_op::<O, O>(SkipOp::stash(name, make))
    }

    /// The entry of [`Layers::pop`].
    pub fn pop<O: Value, S: Value, P: Value>(
        name: impl Into<String>,
        combine: impl Fn(O, S) -> P + Send + Sync + 'static,
    ) -> Self {
        Self::skip_op::<O, P>(SkipOp::user(SkipKind::Pop, name, combine))
    }

    /// The entry of [`Layers::peek`].
    pub fn peek<O: Value, S: Value, P: Value>(
        name: impl Into<String>,
        combine: impl Fn(O, S) -> P + Send + Sync + 'static,
    ) -> Self {
        Self::skip_op::<O, P>(SkipOp::user(SkipKind::Peek, name, combine))
    }
}
