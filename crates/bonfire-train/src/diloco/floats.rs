//! The trained parameters of a model as f32 in host memory, in the order of the model's definition.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData};

use super::DilocoError;
use crate::parameters::ModulePath;

pub(crate) fn lengths<M: Module>(model: &M) -> Vec<usize> {
    #[derive(Default)]
    struct Lengths(Vec<usize>);
    impl ModuleVisitor for Lengths {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            if tensor.is_require_grad() {
                self.0.push(tensor.shape().num_elements());
            }
        }
    }
    let mut lengths = Lengths::default();
    model.visit(&mut lengths);
    lengths.0
}

/// The values of some, by their indices in the order.
pub(crate) fn read<M: Module>(
    model: &M,
    wanted: &[usize],
) -> Result<BTreeMap<usize, Vec<f32>>, DilocoError> {
    let mut reader =
        Reader { wanted, path: ModulePath::default(), next: 0, found: Ok(BTreeMap::new()) };
    model.visit(&mut reader);
    reader.found
}

struct Reader<'a> {
    wanted: &'a [usize],
    path: ModulePath,
    next: usize,
    found: Result<BTreeMap<usize, Vec<f32>>, DilocoError>,
}

impl ModuleVisitor for Reader<'_> {
    crate::parameters::follow_path!(path);

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if !tensor.is_require_grad() {
            return;
        }
        let index = self.next;
        self.next += 1;
        let Ok(found) = &mut self.found else { return };
        if !self.wanted.contains(&index) {
            return;
        }
        let data = tensor.without_autodiff().try_into_data();
        let unreadable =
            |cause: String| DilocoError::Unreadable { parameter: self.path.to_string(), cause };
        let values = data.map_err(|cause| unreadable(cause.to_string())).and_then(|data| {
            let values = data.convert_dtype(DType::F32).try_to_vec::<f32>();
            values.map_err(|cause| unreadable(cause.to_string()))
        });
        match values {
            Ok(values) => {
                found.insert(index, values);
            }
            Err(error) => self.found = Err(error),
        }
    }
}

/// The model with other values for some; `mixing` of their own values remains.
pub(crate) fn write<M: Module>(model: M, values: BTreeMap<usize, Vec<f32>>, mixing: f64) -> M {
    model.map(&mut Writer { values, mixing, next: 0 })
}

struct Writer {
    values: BTreeMap<usize, Vec<f32>>,
    mixing: f64,
    next: usize,
}

impl ModuleMapper for Writer {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        if !tensor.is_require_grad() {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        let index = self.next;
        self.next += 1;
        let Some(values) = self.values.remove(&index) else {
            return Param::from_mapped_value(id, tensor, mapper);
        };
        let data = TensorData::new(values, tensor.dims());
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let common = Tensor::<D>::from_data(data, (&device, dtype));
        let written = match self.mixing {
            0.0 => common,
            own => tensor.detach().mul_scalar(own) + common.mul_scalar(1.0 - own),
        };
        Param::from_mapped_value(id, written.detach().require_grad(), mapper)
    }
}
