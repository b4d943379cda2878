//! The state of a training, from rank 0 to all others: model, optimizer and learning-rate scheduler.
//!
//! Burn gives a strategy a learner whose state it cannot read, but a checkpointer can: rank 0 makes a
//! checkpoint whose files are channels.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bonfire_collective::{ProcessGroup, Rank};
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use burn_train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy,
};
use burn_train::metric::store::EventStoreClient;
use burn_train::{Learner, LearnerModel, LearningCheckpointer};

use burn::lr_scheduler::LrSchedulerRecord;

use crate::error::LearnerError;

const SOURCE: Rank = Rank::new(0);

/// The timeout of Burn's checkpointing threads for records of a model in memory.
const RECORD_TIMEOUT: Duration = Duration::from_secs(600);

/// Sends the state of this learner to all other ranks. Rank 0 calls it.
pub(crate) fn send<M: LearnerModel>(
    learner: &Learner<M>,
    store: &EventStoreClient,
    group: &ProcessGroup,
) -> Result<(), LearnerError> {
    let (model, model_records) = channel();
    let (optimizer, optimizer_records) = channel();
    let (scheduler, scheduler_records) = channel();
    let mut checkpointer = LearningCheckpointer::new(
        AsyncCheckpointer::new(Capture::<ModuleRecord>(model)),
        AsyncCheckpointer::new(Capture::<OptimizerRecord>(optimizer)),
        AsyncCheckpointer::new(Capture::<LrSchedulerRecord>(scheduler)),
        Box::new(Always),
    );
    checkpointer.checkpoint(learner, 0, store);
    send_record(MODEL, &model_records, group)?;
    send_record(OPTIMIZER, &optimizer_records, group)?;
    send_record(SCHEDULER, &scheduler_records, group)
}

const MODEL: &str = "model";
const OPTIMIZER: &str = "optimizer";
const SCHEDULER: &str = "learning-rate scheduler";

/// Receives the state of rank 0. Every other rank calls it.
pub(crate) fn receive<M: LearnerModel>(
    learner: &mut Learner<M>,
    group: &ProcessGroup,
) -> Result<(), LearnerError> {
    let record: ModuleRecord = receive_record(MODEL, group)?;
    learner.load_model(record);
    learner.load_optim(receive_record(OPTIMIZER, group)?);
    learner.load_scheduler(receive_record(SCHEDULER, group)?);
    Ok(())
}

fn send_record<R: Checkpoint>(
    what: &'static str,
    records: &Receiver<R>,
    group: &ProcessGroup,
) -> Result<(), LearnerError> {
    let failed = |cause: String| LearnerError::Record { what, cause };
    let record = records.recv_timeout(RECORD_TIMEOUT).map_err(|cause| failed(cause.to_string()))?;
    let bytes = record.checkpoint_into_bytes().map_err(|cause| failed(cause.to_string()))?;
    passed_on(bytes.to_vec(), group).map(drop)
}

fn receive_record<R: Checkpoint>(
    what: &'static str,
    group: &ProcessGroup,
) -> Result<R, LearnerError> {
    let bytes = passed_on(Vec::new(), group)?;
    R::checkpoint_from_bytes(Bytes::from_bytes_vec(bytes))
        .map_err(|cause| LearnerError::Record { what, cause: cause.to_string() })
}

/// Broadcasts the bytes of rank 0, whatever the others have.
pub(crate) fn passed_on(mut bytes: Vec<u8>, group: &ProcessGroup) -> Result<Vec<u8>, LearnerError> {
    let mut length = [bytes.len() as i64];
    group.broadcast(&mut length, SOURCE)?;
    bytes.resize(length[0] as usize, 0);
    group.broadcast(&mut bytes, SOURCE)?;
    Ok(bytes)
}

struct Capture<R>(Sender<R>);

impl<R: Checkpoint> Checkpointer<R> for Capture<R> {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        self.0.send(record).map_err(|_| {
            CheckpointerError::Unknown("the receiver of the record has gone".to_owned())
        })
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        let cause = "a channel to other ranks keeps nothing";
        Err(CheckpointerError::Unknown(cause.to_owned()))
    }
}

struct Always;

impl CheckpointingStrategy for Always {
    fn checkpointing(
        &mut self,
        _epoch: usize,
        _collector: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

/// The checkpointer of a rank that is not 0: restores what rank 0 sends, saves nothing.
pub(crate) struct FromMain {
    pub(crate) what: &'static str,
    pub(crate) group: ProcessGroup,
}

impl FromMain {
    /// For model, optimizer and scheduler: the order in which the learner restores them.
    pub(crate) fn all(group: &ProcessGroup) -> [Self; 3] {
        [MODEL, OPTIMIZER, SCHEDULER].map(|what| Self { what, group: group.clone() })
    }
}

impl<R: Checkpoint> Checkpointer<R> for FromMain {
    fn save(&self, _epoch: usize, _record: R) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        receive_record(self.what, &self.group)
            .map_err(|error| CheckpointerError::Unknown(error.to_string()))
    }
}
