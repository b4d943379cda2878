//! Trains the model. Every rank runs it with the same settings and the same corpus.

mod pipeline;

use anyhow::{Context, Result};
use bonfire::World;
use bonfire::checkpoint::TensorTable;
use bonfire::collective::WorldSize;
use bonfire::ddp::Digest;
use bonfire::parallel::zigzag_ranges;
use bonfire::report::Report;
use bonfire::trainer::{Data, Parts, Trainer, prepare};
use bonfire::world::{Axis, Mesh};
use burn::module::Module;
use burn::tensor::Device;

use crate::batch::{Sampler, TextBatch, validation};
use crate::corpus::Corpus;
use crate::model::Gpt;
use crate::options::Settings;

/// A trained model and the report of its training.
#[derive(Debug)]
pub struct Trained {
    /// The model, without autodiff: the same bits on every rank.
    pub model: Gpt,
    /// The report of the training, as this rank has it.
    pub report: Report,
    /// The exit code of a training that was asked to stop before its end.
    pub stop_code: Option<u8>,
}

pub fn train(world: &World, settings: &Settings, corpus: &Corpus) -> Result<Trained> {
    let mut settings = settings.clone();
    settings.config.report.title = format!("A character transformer on {}", corpus.name);
    let (mesh, device) = (world.mesh(settings.config.mesh)?, world.device().autodiff());
    let run = Run { world, mesh: &mesh, settings: &settings, corpus, device };
    match mesh.sub(Axis::Pp).world_size() {
        WorldSize::ONE => run.layers(),
        _ => run.stages(),
    }
}

/// What a rank trains, or plans to train, and its place on the mesh.
pub(crate) struct Run<'a> {
    pub(crate) world: &'a World,
    pub(crate) mesh: &'a Mesh,
    pub(crate) settings: &'a Settings,
    pub(crate) corpus: &'a Corpus,
    pub(crate) device: Device,
}

impl Run<'_> {
    /// Trains a model of which every rank has all layers, or a part of each.
    fn layers(&self) -> Result<Trained> {
        let cp = self.mesh.sub(Axis::Cp);
        zigzag_ranges(self.settings.args.context, cp)
            .context("--context cannot be divided among the ranks of cp in --mesh")?;
        let parts = self.parts(|model| model.among(cp))?;
        let mut trainer = prepare(self.world, &self.settings.config, parts)?;
        trainer.note(&self.headline());
        trainer.fact("model", self.size());
        let initial = Digest::of(&whole(&mut trainer)?)?;
        trainer.fact("initial parameters", initial);
        let validation = self.validation();
        let mut is_due = true;
        loop {
            if is_due {
                let loss = |model: &Gpt, batch| [model.loss(batch).into_scalar::<f64>()];
                let [loss] = trainer.evaluate(&validation, loss)?;
                trainer.value("validation_loss", loss)?;
            }
            let Some(batch) = trainer.next_batch()? else { break };
            trainer.step(batch, Gpt::loss)?;
            is_due = trainer.evaluation_is_due();
        }
        let model = whole(&mut trainer)?;
        trainer.fact("parameters", Digest::of(&model)?);
        let stop_code = trainer.stop_code();
        Ok(Trained { model, report: trainer.finish()?, stop_code })
    }

    /// Makes the parts of a training, with the model that `own` makes of this rank's part.
    fn parts<M>(&self, own: impl FnOnce(Gpt) -> M) -> Result<Parts<M, TextBatch>> {
        let context = self.settings.args.context;
        let whole = self.model();
        let (table, flops_per_token) = (TensorTable::of(&whole), whole.flops_per_token());
        let model = own(self.divided(whole)?);
        let (_, batch) = self.passes()?;
        Ok(Parts::new(model, Data::stream(batch))
            .with_mesh(self.mesh, table)
            .with_units("tokens", context)
            .with_flops_per_sample(flops_per_token * context as f64))
    }

    fn validation(&self) -> Data<TextBatch> {
        let windows = self.settings.args.eval_windows;
        validation(&self.corpus.validation, windows, self.world.device())
    }

    fn headline(&self) -> String {
        let Corpus { name, characters, vocabulary, .. } = self.corpus;
        format!(
            "{} on {}; {characters} characters of {name}, {} distinct; windows of {}",
            self.size(),
            self.world.device_name(),
            vocabulary.size(),
            self.settings.args.context,
        )
    }

    fn size(&self) -> String {
        format!("{} parameters", self.model().num_params())
    }

    /// Makes the complete model, whose matrices are drawn on first use.
    pub(crate) fn model(&self) -> Gpt {
        let config = self.settings.args.model(self.corpus.vocabulary.size());
        config.init(self.settings.config.seed, &self.device)
    }

    /// Takes the part of a model that the ranks of `tp` leave this one.
    pub(crate) fn divided(&self, model: Gpt) -> Result<Gpt> {
        model.divided(self.mesh.sub(Axis::Tp)).context("--mesh does not fit the model")
    }

    /// Makes this rank's batches of the first step.
    pub(crate) fn micro_batches(&self) -> Result<Vec<TextBatch>> {
        let (per_step, batch) = self.passes()?;
        Ok((0..per_step).map(batch).collect())
    }

    /// Returns the forward passes of a step, and this rank's batch of each pass: windows that differ among the ranks of
    /// `data`.
    fn passes(&self) -> Result<(u64, impl Fn(u64) -> TextBatch + Send + Sync + use<>)> {
        let (text, device) = (self.corpus.training.clone(), self.device.clone());
        let (rank, world_size) = (self.mesh.data().rank(), self.mesh.data().world_size());
        let config = &self.settings.config;
        let batches = config.batches(world_size.get().into())?;
        let (micro, per_step) = (usize::try_from(batches.micro)?, batches.accumulation);
        let batch = micro * usize::try_from(per_step)?;
        let sampler = Sampler { seed: config.seed, windows: text.count(), batch };
        let of_pass = move |pass| {
            let windows = sampler.windows(pass / per_step, rank, world_size);
            let first = (pass % per_step) as usize * micro;
            text.batch(&windows[first..first + micro], &device)
        };
        Ok((per_step, of_pass))
    }
}

/// The complete model, on every rank.
fn whole(trainer: &mut Trainer<Gpt, TextBatch>) -> Result<Gpt> {
    Ok(trainer.ddp().whole()?.whole()?)
}
