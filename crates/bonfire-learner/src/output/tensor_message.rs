//! Tensors as bytes, sent from one rank to another.

use std::collections::VecDeque;

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use crate::error::LearnerError;

/// Tensors of any shapes and types, taken out in the order in which they were put in.
#[derive(Debug, Default)]
pub struct TensorMessage {
    tensors: VecDeque<TensorData>,
}

macro_rules! kinds {
    ($($put:ident $take:ident $kind:ty, $what:literal;)*) => {$(
        #[doc = concat!("Puts ", $what, " in; reads it from its device.")]
        ///
        /// # Errors
        /// [`LearnerError::Output`] if it cannot be read.
        pub fn $put<const D: usize>(&mut self, tensor: Tensor<D, $kind>) -> Result<(), LearnerError> {
            let data = tensor.without_autodiff().try_into_data();
            let data = data.map_err(|cause| LearnerError::Output(cause.to_string()))?;
            self.tensors.push_back(data);
            Ok(())
        }

        #[doc = concat!("Takes ", $what, " out, onto `device`.")]
        ///
        /// # Errors
        /// [`LearnerError::Output`] if the next tensor is missing or does not have `D` dimensions.
        pub fn $take<const D: usize>(
            &mut self,
            device: &Device,
        ) -> Result<Tensor<D, $kind>, LearnerError> {
            let data = self.next(D)?;
            let dtype = data.dtype();
            Ok(Tensor::from_data(data, (device, dtype)))
        }
    )*};
}

impl TensorMessage {
    kinds! {
        put_float take_float burn::tensor::Float, "a tensor of floats";
        put_int take_int Int, "a tensor of integers";
        put_bool take_bool Bool, "a tensor of truth values";
    }

    /// Returns true if all tensors have been taken out.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    fn next(&mut self, rank: usize) -> Result<TensorData, LearnerError> {
        let Some(data) = self.tensors.pop_front() else {
            return Err(LearnerError::Output("a tensor is missing".to_owned()));
        };
        if data.rank() != rank {
            let found = data.rank();
            let text = format!("a tensor has {found} dimensions instead of {rank}");
            return Err(LearnerError::Output(text));
        }
        Ok(data)
    }

    /// The length of a description, the description (shapes and types), then the values.
    pub(crate) fn into_bytes(self) -> Result<Vec<u8>, LearnerError> {
        let description: Vec<(Vec<usize>, DType)> =
            self.tensors.iter().map(|data| (data.shape().to_vec(), data.dtype())).collect();
        let description = serde_json::to_vec(&description)
            .map_err(|cause| LearnerError::Output(cause.to_string()))?;
        let values: usize = self.tensors.iter().map(|data| data.as_bytes().len()).sum();
        let mut bytes = Vec::with_capacity(LENGTH_BYTES + description.len() + values);
        bytes.extend((description.len() as u64).to_le_bytes());
        bytes.extend(description);
        for data in &self.tensors {
            bytes.extend_from_slice(data.as_bytes());
        }
        Ok(bytes)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, LearnerError> {
        let torn = || LearnerError::Output("what arrived is incomplete".to_owned());
        let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>().ok_or_else(torn)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| torn())?;
        let (description, mut rest) = rest.split_at_checked(length).ok_or_else(torn)?;
        let description: Vec<(Vec<usize>, DType)> = serde_json::from_slice(description)
            .map_err(|cause| LearnerError::Output(cause.to_string()))?;
        let mut tensors = VecDeque::with_capacity(description.len());
        for (shape, dtype) in description {
            let size = shape.iter().product::<usize>() * dtype.size();
            let (values, after) = rest.split_at_checked(size).ok_or_else(torn)?;
            tensors.push_back(TensorData::from_bytes_vec(values.to_vec(), shape, dtype));
            rest = after;
        }
        if rest.is_empty() { Ok(Self { tensors }) } else { Err(torn()) }
    }
}

const LENGTH_BYTES: usize = size_of::<u64>();
