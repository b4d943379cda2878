//! What a rehearsal finds of memory, in a program of its own: others that run beside it would be seen, too.

#![cfg(all(feature = "flex", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use bonfire_plan::Bytes;
use bonfire_plan::memory::Start;
use bonfire_train::{Precision, Resident, outline, rehearse};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

const WIDTH: usize = 1024;
const LAYERS: usize = 16;

/// Of a layer's weight, of an activation of 1024 rows.
const MIB: usize = 4;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    shift: Param<Tensor<1>>,
}

impl Net {
    /// Products with weights keep their input for the backward pass, and tangents their output.
    fn loss(&self, rows: usize, device: &Device) -> Tensor<1> {
        let x = Tensor::<2>::full([rows, WIDTH], 0.1, device);
        let layers = self.layers.iter();
        layers.fold(x, |x, layer| layer.forward(x).tanh()).mean()
    }
}

#[test]
fn a_rehearsal_finds_activations_and_not_gradients() {
    let device = Device::flex().autodiff();
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&device);
    let net = Net {
        layers: (0..LAYERS).map(layer).collect(),
        shift: Param::from_tensor(Tensor::<1>::ones([3], &device)).set_require_grad(false),
    };
    let (parameters, start) = outline(&net, |_| 2);
    assert_eq!(start, Start::OneByOne, "nothing has used a layer yet");
    assert_eq!(parameters.len(), LAYERS + 1);
    assert_eq!(parameters[3].name, "layers.3.weight");
    assert_eq!(parameters[3].shape, [WIDTH, WIDTH]);
    assert_eq!((parameters[3].moments, parameters[LAYERS].moments), (Some(2), None));

    let taken = |rows: usize| {
        let found = rehearse(&net, Precision::F32, |net: &Net| net.loss(rows, &device)).unwrap();
        let mib = |bytes: Bytes| bytes.get() as f64 / f64::from(1 << 20);
        println!("{rows} rows: {found:?}");
        (mib(found.alone), mib(found.with_gradients))
    };
    let ((few, with), (many, _)) = (taken(1), taken(1024));
    // Some gradients at a time, of 64 MiB of them.
    assert!(few < (LAYERS / 2 * MIB) as f64, "{few} MiB");
    let kept = (LAYERS * MIB) as f64;
    assert!(with > 0.9 * kept, "{with} MiB with all gradients");
    assert!((0.9 * kept..2.5 * kept).contains(&many), "{many} MiB");
    assert_eq!(outline(&net, |_| 2).0, parameters);

    // The peak is that of memory that is gone.
    let memory = vec![1_u8; 64 << 20];
    let with = Resident::of_this_process().unwrap();
    drop(memory);
    assert!(with.now_bytes > 64 << 20, "{with:?}");
    // Linux counts a few pages late.
    let peak = || Resident::of_this_process().unwrap().peak_bytes + (1 << 20);
    assert!(peak() >= with.now_bytes, "{with:?}");
    Resident::forget_peak().unwrap();
    assert!(peak() < with.now_bytes, "{with:?}");
}
