//! What rank 0 measures is what one process would that saw all samples.

use burn::tensor::{Bool, DType, Int};
use burn_train::metric::AccuracyMetric;
use burn_train::{ClassificationOutput, SequenceOutput};

use super::*;
use crate::output::{Sent, gathered};

/// The value that rank 0 has for a metric.
#[derive(Clone)]
struct Reading(Arc<Mutex<Vec<f64>>>, Split);

impl EarlyStoppingStrategy for Reading {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let name = LossMetric::new().name();
        let value = store.find_metric(&name, epoch, Aggregate::Mean, &self.1);
        self.0.lock().unwrap().push(value.unwrap());
        false
    }
}

/// The validation losses of three epochs on rank 0.
fn losses(ranks: u32, batch: usize) -> Vec<f64> {
    let results = on_ranks(ranks, |world| {
        let folder = tempfile::tempdir().unwrap();
        let reading = Reading(Arc::default(), Split::Valid);
        let values = Arc::clone(&reading.0);
        let loader = |len, order| {
            let loader = DatasetLoader::new(&world, whole(len), ToPoints::default(), batch);
            Arc::new(loader.with_order(order).with_remainder(Remainder::Exact))
        };
        let train = loader(SAMPLES, ORDER);
        let valid = loader(VALID_SAMPLES, Order::Sequential);
        let training = training_of(folder.path(), 3, train, valid).early_stopping(reading);
        finished(training.distributed(&world).launch(learner(&world)));
        values.lock().unwrap().clone()
    });
    for others in &results[1..] {
        assert!(others.is_empty());
    }
    results[0].clone()
}

#[test]
fn two_ranks_measure_what_one_with_their_batches_measures() {
    // The same batches together: 4 of each of two ranks are 8 of one.
    let (two, one) = (losses(2, 4), losses(1, 8));
    assert_eq!(two.len(), 3);
    assert!(two[2] < two[0], "it learns: {two:?}");
    for (two, one) in two.iter().zip(&one) {
        // A mean of f32 losses, added up in another order, and three epochs of three
        // steps whose gradients are too; the model's largest sums have 24 terms.
        let tolerance = 9.0 * 24.0 * f64::from(f32::EPSILON) * one;
        assert!((two - one).abs() <= tolerance, "{two} and {one}");
    }
}

#[test]
fn outputs_arrive_as_they_were() {
    let values = on_ranks(3, |world| {
        let device = world.device();
        let rank = world.rank().index();
        // Rank 1 has no batch.
        let output = (rank != 1).then(|| {
            let loss = Tensor::from_floats([rank as f32], &device);
            let output = Tensor::from_floats([[0.5, rank as f32], [1.0, 0.0]], &device);
            let targets = Tensor::from_ints([1, rank as i32], &device);
            ClassificationOutput::new(loss, output, targets)
        });
        let outputs = gathered(&world, Sent::Output, output, &[2, 0, 2]).unwrap();
        let read = |output: ClassificationOutput| {
            let targets: Vec<i64> =
                output.targets.into_data().convert::<i64>().try_to_vec().unwrap();
            let loss: Vec<f32> = output.loss.into_data().try_to_vec().unwrap();
            let output: Vec<f32> = output.output.into_data().try_to_vec().unwrap();
            (loss, output, targets)
        };
        outputs.into_iter().map(read).collect::<Vec<_>>()
    });
    let of = |rank: u8| {
        let value = f32::from(rank);
        // The loss counts for both samples.
        (vec![value; 2], vec![0.5, value, 1.0, 0.0], vec![1, i64::from(rank)])
    };
    assert_eq!(values[0], [of(0), of(2)]);
    assert!(values[1].is_empty() && values[2].is_empty());
    // The metric of Burn that goes with it knows the type.
    let _ = AccuracyMetric::new();
}

/// Unless they are asked for, outputs of any size stay where they are, and the loss is that of all.
#[test]
fn losses_are_sent_without_their_outputs() {
    let seen = on_ranks(3, |world| {
        let device = world.device();
        let rank = world.rank().index();
        // Rank 1 has no batch.
        let output = (rank != 1).then(|| {
            let loss = Tensor::from_floats([rank as f32], &device);
            let output = Tensor::full([2, 1], rank as f32, &device);
            RegressionOutput::new(loss, output.clone(), output)
        });
        let sent = LearnerConfig::default().outputs.of_training();
        let seen = gathered(&world, sent, output, &[1, 0, 2]).unwrap();
        let read = |seen: RegressionOutput| {
            let output = seen.output.into_data().try_to_vec::<f32>().unwrap();
            (seen.loss.into_data().try_to_vec::<f32>().unwrap(), output)
        };
        seen.into_iter().map(read).collect::<Vec<_>>()
    });
    assert_eq!(seen[0], [(vec![0.0, 2.0, 2.0], vec![0.0; 2])]);
    assert!(seen[1].is_empty() && seen[2].is_empty());
}

#[test]
fn a_message_keeps_shapes_types_and_values() {
    let device = Device::flex();
    let mut message = TensorMessage::default();
    let half = Tensor::<2>::from_floats([[1.5, -2.0, 0.25]], &device).cast(DType::F16);
    let truth = Tensor::<1, Bool>::from_data([true, false, true], &device);
    message.put_float(half.clone()).unwrap();
    message.put_bool(truth.clone()).unwrap();
    message.put_int(Tensor::<3, Int>::zeros([2, 0, 1], &device)).unwrap();
    let bytes = message.into_bytes().unwrap();
    let mut message = TensorMessage::from_bytes(&bytes).unwrap();
    let arrived = message.take_float::<2>(&device).unwrap();
    assert_eq!(arrived.dtype(), DType::F16);
    assert_eq!(arrived.into_data(), half.into_data());
    assert_eq!(message.take_bool::<1>(&device).unwrap().into_data(), truth.into_data());
    assert_eq!(message.take_int::<3>(&device).unwrap().dims(), [2, 0, 1]);
    assert!(message.is_empty());
    assert!(matches!(message.take_float::<1>(&device), Err(LearnerError::Output(_))));
    for cut in 0..bytes.len() {
        assert!(TensorMessage::from_bytes(&bytes[..cut]).is_err(), "{cut} bytes");
    }
}

#[test]
fn a_message_says_when_dimensions_differ() {
    let device = Device::flex();
    let mut message = TensorMessage::default();
    message.put_float(Tensor::<2>::zeros([1, 1], &device)).unwrap();
    let error = message.take_float::<3>(&device).unwrap_err();
    assert!(error.to_string().contains("2 dimensions instead of 3"), "{error}");
}

#[test]
fn a_sequence_is_sent_with_and_without_predictions() {
    let device = Device::flex();
    for predictions in [None, Some(Tensor::<2, Int>::from_ints([[3, 4]], &device))] {
        let output = SequenceOutput::new(
            Tensor::from_floats([0.5], &device),
            Tensor::ones([1, 2, 5], &device),
            predictions.clone(),
            Tensor::from_ints([[1, 2]], &device),
        );
        let mut message = TensorMessage::default();
        output.pack(&mut message).unwrap();
        let bytes = message.into_bytes().unwrap();
        let mut message = TensorMessage::from_bytes(&bytes).unwrap();
        let arrived = SequenceOutput::unpack(&mut message, &device).unwrap();
        assert_eq!(arrived.logits.dims(), [1, 2, 5]);
        let read = |tensor: Option<Tensor<2, Int>>| tensor.map(Tensor::into_data);
        assert_eq!(read(arrived.predictions), read(predictions));
    }
}
