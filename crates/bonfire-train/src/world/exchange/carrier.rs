//! How a layer and those who map a module speak with each other.
//!
//! A module's type is fixed and a [`ModuleMapper`](burn::module::ModuleMapper) sees nothing of a
//! layer but its parameters, so a mapper cannot hand a layer its group. But a parameter may carry
//! functions for saving and loading, and mappers may set them. A [`RunningStatistic`] shows mappers a
//! parameter made for the occasion, and looks afterwards at which functions it came back with. What
//! they are for is found out by a question: a tensor of one element, whose answer's length says it.
//! Records never see these functions: the parameter that is saved or loaded is another one.
//!
//! [`RunningStatistic`]: crate::RunningStatistic

use burn::module::{Param, ParamId, ParamMapper};
use burn::tensor::{Device, Tensor};

use super::group::NormGroup;

/// How long the answers are.
const STATISTIC: usize = 2;
const KEEP: usize = 2;
/// And the number of ranks.
const EXCHANGE: usize = 2;

/// What a mapper wants of a statistic.
#[derive(Debug)]
pub(crate) enum Wish {
    /// Nothing: the value that came back is the new one.
    Nothing,
    /// That it stays shared with the module that was mapped, which gets the value that came back, too.
    Keep,
    /// That it is the one of several ranks.
    Join(Exchange),
}

/// A layer's way to the other ranks.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    function: ParamMapper<Tensor<1>>,
    ranks: usize,
}

impl Exchange {
    /// Sends a message, and returns what the ranks' messages make together.
    pub(crate) fn send(&self, message: Tensor<1>) -> Tensor<1> {
        self.function.on_load(message)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }
}

/// The parameter that a statistic shows to mappers.
pub(crate) fn shown(id: ParamId, value: Tensor<1>) -> Param<Tensor<1>> {
    Param::initialized(id, value).save_mapper(|question| answer(question, STATISTIC))
}

/// What the mapper that returned `function` with a statistic wants.
pub(crate) fn wish(function: ParamMapper<Tensor<1>>, device: &Device) -> Wish {
    match asked(device, |question| function.on_load(question)) {
        KEEP => Wish::Keep,
        length if length > EXCHANGE => Wish::Join(Exchange {
            ranks: length - EXCHANGE,
            function,
        }),
        _ => Wish::Nothing,
    }
}

/// Whether a parameter is what a statistic shows.
pub(crate) fn is_statistic<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    if D != 1 || !param.is_initialized() || param.is_require_grad() {
        return false;
    }
    let (_, value, function) = param.clone().consume();
    let device = value.device().without_autodiff();
    asked(&device, |question: Tensor<D>| function.on_save(question)) == STATISTIC
}

/// The same parameter; if it is a statistic, the mapped module shares it with the original, value and
/// all.
pub(crate) fn kept<const D: usize>(param: Param<Tensor<D>>) -> Param<Tensor<D>> {
    if is_statistic(&param) {
        param.load_mapper(|question| answer(question, KEEP))
    } else {
        param
    }
}

/// The same parameter, which asks a statistic to join a group.
pub(crate) fn joining<const D: usize>(
    param: Param<Tensor<D>>,
    group: NormGroup,
) -> Param<Tensor<D>> {
    param.load_mapper(move |message: Tensor<D>| {
        if message.shape().num_elements() == 1 {
            return answer(message, EXCHANGE + group.group().world_size().len());
        }
        group.exchange(message)
    })
}

fn asked<const D: usize>(device: &Device, function: impl FnOnce(Tensor<D>) -> Tensor<D>) -> usize {
    let question = Tensor::zeros([1; D], device);
    function(question).shape().num_elements()
}

/// An answer of a length.
pub(crate) fn answer<const D: usize>(question: Tensor<D>, elems: usize) -> Tensor<D> {
    let mut shape = [1; D];
    shape[0] = elems;
    Tensor::zeros(shape, &question.device())
}
