//! Notifies the reducer of gradients while a backward pass runs.
//!
//! For every forward pass each parameter goes through an operation that changes nothing. Its
//! backward step runs when all operations that used the parameter have run theirs, so the gradient
//! it sees is final, however often the parameter was used.
//!
//! *When* it runs is another matter: Burn runs backward steps by their order, the length of the longest path from the
//! leaves, largest first. A step next to a parameter has order 1, so all of them would run at the very end, and
//! nothing would overlap. The operation therefore gets a second input, an anchor of a chosen order that needs no
//! gradient: it is then as far from the leaves as the layer that uses the parameter. Where that is, is estimated: for
//! the first pass from the order in which the model defines its parameters, for others from the order in which the
//! first one used them and from the depth of its graph. A bad estimate costs overlap, and memory where gradients are
//! passed on, never correctness.
//!
//! In mixed precision the parameter is cast behind the operation, so the gradient it sees is that of
//! the parameter itself.
//!
//! A parameter that is gathered when it is used has a stand-in in the graph, which gets its gradient. The stand-in has
//! the hook.
//!
//! Must never change a value: the gradients are those that the pass computes without it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bonfire_collective::Mutex;
use burn::backend::TensorMetadata;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops};
use burn::module::{Module, ModuleMapper, Param, Reparameterization, Reparameterizer};
use burn::tensor::{Device, DispatchTensor, Tensor};

use crate::loss::precision::Enclosing;
use crate::parameters::ParameterTable;
use crate::parameters::shards::Shards;
use crate::reducer::Reducer;
use crate::reducer::collect::{Gradient, Site, checked, unreadable};
use crate::reducer::operation::{Graph, behind, node, on_backend_of, primitive};
use crate::reducer::readback::{self, Readback};
use crate::world::exchange::mapping::{Meaning, meant};
use crate::{Precision, TrainError};

/// The ratio of the distance of anchors to that of layers, on average. A layer behind an anchor too far
/// from the leaves moves there, with all that follow it, and its hook runs just in time; one behind
/// an anchor too near has its hook run late. Layers are not equally deep, so: rather too far.
const STRETCH: usize = 4;

/// The distance of anchors in the first pass, whose depth is still unknown.
const FIRST_DISTANCE: usize = 6;

/// The depth of a model's loss graph; 0 until a backward pass has shown it.
pub(crate) type Depth = Arc<AtomicUsize>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) precision: Precision,
    /// True if gradients stay with their parameters when the reducer has them.
    pub(crate) keeps_gradients: bool,
    /// The parameters that are gathered when they are used.
    pub(crate) gathered: Option<&'a Shards>,
}

#[derive(Clone, Debug)]
pub(crate) enum Listener {
    /// None: the pass only has the same graph as others.
    Nobody,
    Dropping,
    /// A reducer, whose buckets are sent in this pass or a later one. Weak, because Burn keeps the graph of a pass
    /// without a backward pass, and a group that it held would not be left before the process ends.
    Reducer(Weak<Mutex<Reducer>>),
}

/// The positions of the parameters' operations in the graph. Made once: anchors need no gradient, so no backward pass
/// uses them up.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    anchors: Vec<Tensor<1>>,
    are_first: bool,
    /// The parameters of the first forward pass, in the order of use.
    used: Uses,
}

/// Parameters in the order of their first use.
type Uses = Arc<Mutex<Vec<usize>>>;

/// The container of a mapper that has moved from this rank's rows of a parameter to its stand-in.
pub(crate) const GATHERED: &str = "gathered";

#[derive(Module, Debug)]
struct Noted {
    #[module(skip)]
    parameter: usize,
    #[module(skip)]
    used: Uses,
}

impl Reparameterization for Noted {
    const NAME: &'static str = "noted";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let mut used = self.used.lock();
        if !used.contains(&self.parameter) {
            used.push(self.parameter);
        }
        base
    }
}

/// Records the use of each trainable parameter. Those with another reparameterization keep it.
struct Noting<'a> {
    table: &'a ParameterTable,
    used: &'a Uses,
}

impl Reparameterizer for Noting<'_> {
    type Reparam = Noted;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Noted>) {
        let Some(parameter) = self.table.index_of(param.id) else {
            return (param, None);
        };
        let used = Arc::clone(self.used);
        (param, Some(Noted { parameter, used }))
    }
}

impl Anchors {
    /// Anchors for the parameters of a model, spread evenly over a distance from the leaves, in the order of use.
    /// Unused parameters are placed in the order of the model's definition, behind the parameter before them.
    fn spread(
        &self,
        first: &Tensor<1>,
        parameters: usize,
        distance: usize,
    ) -> Result<Vec<Tensor<1>>, TrainError> {
        let mut order = self.used.lock().clone();
        for parameter in 0..parameters {
            if !order.contains(&parameter) {
                let before = order.iter().position(|&used| used + 1 == parameter);
                order.insert(before.map_or(0, |before| before + 1), parameter);
            }
        }
        let mut anchor = first.clone();
        let mut reached = 0;
        let mut anchors = vec![first.clone(); parameters];
        for (place, parameter) in order.into_iter().enumerate() {
            while reached < distance * (place + 1) / parameters {
                anchor =
                    on_backend_of!(anchor, "the loss".to_owned(), behind(anchor, Through(None)))?;
                reached += 1;
            }
            anchors[parameter] = anchor.clone();
        }
        Ok(anchors)
    }

    /// The same model, whose backward pass notifies `listener` of final gradients.
    pub(crate) fn attach<M: Module>(
        &mut self,
        model: &M,
        table: &Arc<ParameterTable>,
        depth: &Depth,
        pass: Pass<'_>,
    ) -> Result<M, TrainError> {
        let depth = depth.load(Ordering::Relaxed);
        let mut attacher = Attacher {
            anchors: self,
            depth,
            table,
            pass,
            place: Enclosing::default(),
            stands_in: false,
            result: Ok(()),
        };
        // What the forward pass learns about its batches stays with the original.
        let attached = meant(Meaning::Train, || model.clone().map(&mut attacher));
        attacher.result?;
        if depth > 0 {
            return Ok(attached);
        }
        let used = &self.used;
        let noting = || attached.apply_reparameterization(Noting { table, used });
        Ok(meant(Meaning::Share, noting))
    }
}

struct Attacher<'a> {
    anchors: &'a mut Anchors,
    depth: usize,
    table: &'a Arc<ParameterTable>,
    pass: Pass<'a>,
    place: Enclosing,
    /// True if the next tensor is the stand-in of a parameter.
    stands_in: bool,
    result: Result<(), TrainError>,
}

impl Attacher<'_> {
    /// Makes the anchors, unless there are some for this pass.
    fn spread(&mut self, device: &Device) -> Result<(), TrainError> {
        let is_first = self.depth == 0;
        if self.anchors.anchors.is_empty() || self.anchors.are_first && !is_first {
            let parameters = self.table.len();
            let distance =
                if is_first { FIRST_DISTANCE * parameters } else { STRETCH * self.depth };
            let first = Tensor::zeros([1], device);
            self.anchors.anchors = self.anchors.spread(&first, parameters, distance)?;
            self.anchors.are_first = is_first;
        }
        Ok(())
    }

    fn attach<const D: usize>(
        &mut self,
        parameter: usize,
        tensor: Tensor<D>,
    ) -> Result<Tensor<D>, TrainError> {
        self.spread(&tensor.device())?;
        let anchor = self.anchors.anchors[parameter].clone();
        let hook = Hook {
            parameter,
            table: Arc::clone(self.table),
            listener: self.pass.listener.clone(),
            is_kept: self.pass.keeps_gradients || matches!(self.pass.listener, Listener::Nobody),
        };
        let what = format!("parameter {}", self.table.get(parameter).name);
        // All anchors are on the device of the first parameter, which may be of another backend.
        let anchor = on_backend_of!(anchor, what.clone(), node(anchor))?;
        let hooked = on_backend_of!(tensor, what, hooked(tensor, anchor, hook))?;
        Ok(if self.stands_in {
            hooked
        } else {
            self.pass.precision.cast_parameter(hooked, &self.place)
        })
    }
}

impl ModuleMapper for Attacher<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
        self.stands_in = name == GATHERED && container == "Reparameterization";
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.place.exit();
        self.stands_in = false;
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.table.index_of(param.id);
        let (Some(index), Ok(())) = (index, &self.result) else {
            return param;
        };
        let (id, tensor, mapper) = param.consume();
        let is_cut = self.pass.gathered.is_some_and(|shards| shards.is_cut(index));
        if is_cut && !self.stands_in {
            return Param::from_mapped_value(id, tensor.set_require_grad(false), mapper);
        }
        let tensor = self.attach(index, tensor.clone()).unwrap_or_else(|error| {
            self.result = Err(error);
            tensor
        });
        Param::from_mapped_value(id, tensor, mapper)
    }
}

fn hooked<B: Readback, C: CheckpointStrategy, const D: usize>(
    tensor: Tensor<D>,
    anchor: NodeGuard,
    hook: Hook,
) -> Result<Tensor<D>, TrainError>
where
    DispatchTensor: Graph<B, C>,
{
    let (values, parameter) = primitive::<B, C, D>(tensor)?.into_parts();
    let prepared = hook.prepare::<C>([parameter, anchor]).compute_bound();
    Ok(Tensor::from_primitive::<Autodiff<B, C>>(prepared.stateless(values)))
}

#[derive(Debug)]
struct Hook {
    parameter: usize,
    table: Arc<ParameterTable>,
    listener: Listener,
    /// True if the gradient has another user: it is passed on to the parameter.
    is_kept: bool,
}

impl<B: Readback> Backward<B, 2> for Hook {
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let mut gradient = gradients.consume::<B>(&ops.node);
        let entry = self.table.get(self.parameter);
        if gradient.shape().num_elements() == 1 && entry.extent.elems > 1 {
            // A segment has looked at a gathered parameter, and its output does not depend on it.
            let shape = entry.shape.clone().into();
            let dtype = gradient.dtype().into();
            gradient = B::float_zeros(shape, &gradient.device(), dtype);
        }
        tell::<B>(&self.listener, &self.table, self.parameter, gradient.clone());
        let [parameter, _anchor] = ops.parents;
        if let Some(parameter) = parameter.filter(|_| self.is_kept) {
            gradients.register::<B>(parameter.id, gradient);
        }
    }
}

fn tell<B: Readback>(
    listener: &Listener,
    table: &ParameterTable,
    parameter: usize,
    gradient: B::FloatTensorPrimitive,
) {
    let Listener::Reducer(reducer) = listener else {
        return;
    };
    let Some(reducer) = reducer.upgrade() else {
        return;
    };
    let mut reducer = reducer.lock();
    let site = reducer.site();
    let mut take = |found: Result<Option<Gradient<'_>>, String>| {
        let gradient = found
            .map_err(|cause| unreadable(table, parameter, &cause))
            .and_then(|gradient| checked(table, parameter, gradient));
        reducer.take_early(parameter, gradient);
    };
    match site {
        Site::Host => readback::gradient(B::flat(gradient), take),
        Site::Device => take(B::on_device(gradient).map(|tensor| Some(Gradient::Device(tensor)))),
    }
}

/// The same loss, whose backward pass measures the depth of its graph.
pub(crate) fn measured(loss: Tensor<1>, depth: &Depth) -> Result<Tensor<1>, TrainError> {
    if depth.load(Ordering::Relaxed) > 0 {
        return Ok(loss);
    }
    let pass = Through(Some(Arc::clone(depth)));
    on_backend_of!(loss, "the loss".to_owned(), behind(loss, pass))
}

/// An operation that passes everything on, and may record its distance from the leaves.
#[derive(Debug)]
struct Through(Option<Depth>);

impl<B: Readback> Backward<B, 1> for Through {
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        if let Some(depth) = self.0 {
            depth.store(ops.node.order, Ordering::Relaxed);
        }
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, gradient);
        }
    }
}
