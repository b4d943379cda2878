//! The output of a stage, and its form between two stages.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bonfire_train::{Loss, TrainError, custom_gradient};
use burn::tensor::{DType, Gradients, Tensor, TensorData};

use super::error::{BoxError, PipelineError};

/// The output of a stage for one micro-batch: one float tensor or several, of any numbers of dimensions.
///
/// ```
/// # use bonfire_parallel::Output;
/// # use burn::tensor::Tensor;
/// # fn both(features: Tensor<3>, skipped: Tensor<2>) -> Output {
/// // The next stage asks for them in this order.
/// Output::from(features).and(skipped)
/// # }
/// ```
pub struct Output {
    pub(super) tensors: Vec<Box<dyn AnyRank>>,
    /// The factor of a loss in the backward pass.
    pub(super) factor: f64,
}

impl Output {
    /// The output as a loss.
    ///
    /// # Errors
    /// [`PipelineError::NoLoss`].
    pub(super) fn loss(&self) -> Result<Tensor<1>, PipelineError> {
        match &self.tensors[..] {
            [loss] if loss.extent().shape.iter().product::<usize>() == 1 => Ok(loss.flat()),
            _ => {
                let found = self.layout().to_string();
                Err(PipelineError::NoLoss { found })
            }
        }
    }

    /// Its values, detached from the graph. Waits for the device.
    pub(super) fn values(&self) -> Result<Vec<TensorData>, TrainError> {
        self.tensors.iter().map(|tensor| tensor.values()).collect()
    }

    /// Appends a tensor behind the others.
    #[must_use]
    pub fn and<const D: usize>(mut self, tensor: Tensor<D>) -> Self {
        self.tensors.push(Box::new(tensor));
        self
    }

    pub(super) fn layout(&self) -> Layout {
        let tensors = self.tensors.iter().map(|tensor| tensor.extent());
        Layout(tensors.collect())
    }
}

impl<const D: usize> From<Tensor<D>> for Output {
    fn from(tensor: Tensor<D>) -> Self {
        Self { tensors: vec![Box::new(tensor)], factor: 1.0 }
    }
}

impl From<Loss> for Output {
    /// Ignores the weight of the loss: all micro-batches count equally.
    fn from(loss: Loss) -> Self {
        Self { factor: loss.factor(), ..loss.tensor().into() }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Output({})", self.layout())
    }
}

/// The result of a forward pass: a tensor, an [`Output`], a [`Loss`], or one of them in a `Result`.
pub trait IntoOutput {
    /// Converts it into an output.
    ///
    /// # Errors
    /// The error of the program.
    fn into_output(self) -> Result<Output, BoxError>;
}

impl IntoOutput for Output {
    fn into_output(self) -> Result<Output, BoxError> {
        Ok(self)
    }
}

impl<const D: usize> IntoOutput for Tensor<D> {
    fn into_output(self) -> Result<Output, BoxError> {
        Ok(self.into())
    }
}

impl IntoOutput for Loss {
    fn into_output(self) -> Result<Output, BoxError> {
        Ok(self.into())
    }
}

impl<T: IntoOutput, E: Into<BoxError>> IntoOutput for Result<T, E> {
    fn into_output(self) -> Result<Output, BoxError> {
        self.map_err(Into::into)?.into_output()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout(pub(super) Vec<Extent>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
}

/// The types of float tensors. Their indices in this list are their codes in a message.
const FLOATS: [DType; 5] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::Flex32];

impl Layout {
    /// Numbers for a message: for each tensor its type, its number of dimensions, and these.
    pub(super) fn to_words(&self) -> Vec<u64> {
        let mut words = Vec::new();
        for Extent { dtype, shape } in &self.0 {
            let code = FLOATS.iter().position(|float| float == dtype);
            let code = code.expect("a float tensor has the type of a float");
            words.extend([code as u64, shape.len() as u64]);
            words.extend(shape.iter().map(|&dim| dim as u64));
        }
        words
    }

    /// Reads the numbers of [`to_words`](Self::to_words).
    ///
    /// # Panics
    /// If they are not from there.
    pub(super) fn of_words(mut words: &[u64]) -> Self {
        let mut tensors = Vec::new();
        while let [code, rank, rest @ ..] = words {
            let (shape, rest) = rest.split_at(*rank as usize);
            tensors.push(Extent {
                dtype: FLOATS[*code as usize],
                shape: shape.iter().map(|&dim| dim as usize).collect(),
            });
            words = rest;
        }
        Self(tensors)
    }

    pub(super) fn of(values: &[TensorData]) -> Self {
        let extent =
            |data: &TensorData| Extent { dtype: data.dtype(), shape: data.shape().to_vec() };
        Self(values.iter().map(extent).collect())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return formatter.write_str("nothing");
        }
        for (place, Extent { dtype, shape }) in self.0.iter().enumerate() {
            let between = if place == 0 { "" } else { " and " };
            let dtype = format!("{dtype:?}").to_lowercase();
            write!(formatter, "{between}{dtype} {shape:?}")?;
        }
        Ok(())
    }
}

/// The start of a backward pass, which keeps no values of its tensor.
pub(super) struct Start {
    /// A number that depends on the tensor; its value has no meaning.
    number: Tensor<1>,
    gradient: Slot,
}

type Slot = Arc<Mutex<Option<TensorData>>>;

impl Start {
    pub(super) fn backward(
        starts: Vec<Option<Self>>,
        gradients: Vec<TensorData>,
    ) -> Option<Gradients> {
        let mut numbers = Vec::new();
        for (start, gradient) in starts.into_iter().zip(gradients) {
            let Some(start) = start else { continue };
            *start.gradient.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
            numbers.push(start.number);
        }
        (!numbers.is_empty()).then(|| Tensor::cat(numbers, 0).sum().backward())
    }
}

pub(super) trait AnyRank {
    fn extent(&self) -> Extent;

    /// The values, detached from the graph. Waits for the device.
    fn values(&self) -> Result<TensorData, TrainError>;

    /// The start of a backward pass from this tensor; `None` without a graph.
    fn start(&self) -> Option<Start>;

    fn gradient(&self, all: Option<&mut Gradients>) -> Result<TensorData, TrainError>;

    /// The gradient of a leaf, if there is one, where it is; all elements in a row.
    fn flat_gradient(&self, all: &mut Gradients) -> Option<Tensor<1>>;

    fn flat(&self) -> Tensor<1>;
}

impl<const D: usize> AnyRank for Tensor<D> {
    fn extent(&self) -> Extent {
        Extent { dtype: self.dtype(), shape: self.dims().to_vec() }
    }

    fn values(&self) -> Result<TensorData, TrainError> {
        read(self.clone().without_autodiff(), "the output of a stage")
    }

    fn start(&self) -> Option<Start> {
        if !self.is_tracked() {
            return None;
        }
        let gradient = Slot::default();
        let (device, dtype) = (self.device().without_autodiff(), self.dtype());
        let (on, given) = (device.clone(), Arc::clone(&gradient));
        let number = custom_gradient(
            self.clone(),
            move |_| Tensor::zeros([1], (&on, DType::F32)),
            move |_: Tensor<1>| {
                let given = given.lock().unwrap_or_else(PoisonError::into_inner).take();
                let given = given.expect("a backward pass is run once its gradient is there");
                Tensor::from_data(given, (&device, dtype))
            },
        );
        Some(Start { number, gradient })
    }

    fn gradient(&self, all: Option<&mut Gradients>) -> Result<TensorData, TrainError> {
        let found = all.and_then(|all| self.grad_remove(all));
        let gradient = found.unwrap_or_else(|| self.zeros_like().without_autodiff());
        read(gradient, "the gradient of a stage's input")
    }

    fn flat_gradient(&self, all: &mut Gradients) -> Option<Tensor<1>> {
        self.grad_remove(all).map(|gradient| gradient.flat())
    }

    fn flat(&self) -> Tensor<1> {
        self.clone().reshape([self.shape().num_elements()])
    }
}

pub(super) fn loss_value(loss: Tensor<1>) -> Result<f64, TrainError> {
    let data = read(loss, "the loss")?;
    Ok(data.iter::<f64>().next().unwrap_or(f64::NAN))
}

pub(super) fn read<const D: usize>(
    tensor: Tensor<D>,
    what: &str,
) -> Result<TensorData, TrainError> {
    let data = tensor.try_into_data();
    data.map_err(|cause| TrainError::UnreadableTensor {
        what: what.to_owned(),
        cause: format!("{cause:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_read_as_they_are_written() {
        let extent = |dtype, shape: &[usize]| Extent { dtype, shape: shape.to_vec() };
        let both = [extent(DType::F32, &[4, 0, 7]), extent(DType::BF16, &[])];
        for layout in [Layout(Vec::new()), Layout(both.to_vec())] {
            assert_eq!(Layout::of_words(&layout.to_words()), layout);
        }
        assert_eq!(Layout(both.to_vec()).to_string(), "f32 [4, 0, 7] and bf16 []");
    }
}
