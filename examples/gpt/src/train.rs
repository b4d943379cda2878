//! Trains the model. Every rank runs it with the same settings and the same corpus.

pub(crate) mod pipeline;

use anyhow::{Context, Result};
use bonfire::World;
use bonfire::checkpoint::TensorTable;
use bonfire::collective::WorldSize;
use bonfire::config::Config;
use bonfire::ddp::Digest;
use bonfire::parallel::zigzag_ranges;
use bonfire::report::Report;
use bonfire::trainer::{Data, Parts, Trainer, prepare};
use bonfire::world::{Axis, Mesh};
use burn::module::Module;
use burn::tensor::Device;

use crate::batch::{passes, spread};
use crate::data::Corpus;
use crate::model::Gpt;
use crate::options::Settings;
use crate::text::TextBatch;

/// A trained model and the report of its training.
#[derive(Debug)]
pub struct Trained {
    /// The model, without autodiff: the same bits on every rank.
    pub model: Gpt,
    /// The report of the training, as this rank has it.
    pub report: Report,
}

pub fn train(world: &World, settings: &Settings, corpus: &Corpus) -> Result<Trained> {
    let mesh = world.mesh(settings.config.mesh)?;
    let run = Run { world, mesh: &mesh, settings, corpus, device: world.device().autodiff() };
    match mesh.sub(Axis::Pp).world_size() {
        WorldSize::ONE => run.layers(),
        _ => run.stages(),
    }
}

struct Run<'a> {
    world: &'a World,
    mesh: &'a Mesh,
    settings: &'a Settings,
    corpus: &'a Corpus,
    device: Device,
}

impl Run<'_> {
    /// Trains a model of which every rank has all layers, or a part of each.
    fn layers(&self) -> Result<Trained> {
        let (tp, cp) = (self.mesh.sub(Axis::Tp), self.mesh.sub(Axis::Cp));
        zigzag_ranges(self.settings.args.context, cp)
            .context("--context cannot be divided among the ranks of cp in --mesh")?;
        let model = untrained(self.settings, self.corpus, &self.device);
        let facts = Facts::of(&model);
        let model = model.divided(tp).context("--mesh does not fit the model")?.among(cp);
        let config = self.config();
        let parts = self.parts(model, &config, &facts)?;
        let mut trainer = prepare(self.world, &config, parts)?;
        trainer.note(&self.headline(&facts));
        trainer.fact("model", format!("{} parameters", facts.parameters));
        let initial = Digest::of(&whole(&mut trainer)?)?;
        trainer.fact("initial parameters", initial);

        let validation = self.validation();
        let evaluate = |trainer: &mut Trainer<Gpt, TextBatch>| -> Result<()> {
            let loss = |model: &Gpt, batch: TextBatch| [model.loss(batch).into_scalar::<f64>()];
            let [loss] = trainer.evaluate(&validation, loss)?;
            Ok(trainer.value("validation_loss", loss)?)
        };
        evaluate(&mut trainer)?;
        while let Some(batch) = trainer.next_batch()? {
            trainer.step(batch, Gpt::loss)?;
            if trainer.evaluation_is_due() {
                evaluate(&mut trainer)?;
            }
        }
        let model = whole(&mut trainer)?;
        trainer.fact("parameters", Digest::of(&model)?);
        Ok(Trained { model, report: trainer.finish()? })
    }

    fn config(&self) -> Config {
        let mut config = self.settings.config.clone();
        config.report.title = format!("A character transformer on {}", self.corpus.text.name());
        config
    }

    fn parts<M>(&self, model: M, config: &Config, facts: &Facts) -> Result<Parts<M, TextBatch>> {
        let context = self.settings.args.context;
        let text = &self.corpus.training;
        let (_, batch) = passes(text, config, self.mesh.data(), &self.device)?;
        Ok(Parts::new(model, Data::stream(batch))
            .with_mesh(self.mesh, facts.table.clone())
            .with_units("tokens", context)
            .with_flops_per_sample(facts.flops_per_token * context as f64))
    }

    /// The same windows in every evaluation.
    fn validation(&self) -> Data<TextBatch> {
        let (text, device) = (self.corpus.validation.clone(), self.world.device());
        let windows = spread(text.count(), self.settings.args.eval_windows);
        Data::new(windows.len(), move |indices: &[usize]| {
            let own: Vec<usize> = indices.iter().map(|index| windows[*index]).collect();
            text.batch(&own, &device)
        })
    }

    fn headline(&self, facts: &Facts) -> String {
        let (text, context) = (&self.corpus.text, self.settings.args.context);
        format!(
            "{} parameters on {}; {} characters of {}, {} distinct; windows of {context}",
            facts.parameters,
            self.world.device_name(),
            text.tokens().len(),
            text.name(),
            text.vocabulary().size(),
        )
    }
}

/// What is known of a model before it is divided.
struct Facts {
    table: TensorTable,
    parameters: usize,
    flops_per_token: f64,
}

impl Facts {
    fn of(model: &Gpt) -> Self {
        Self {
            table: TensorTable::of(model),
            parameters: model.num_params(),
            flops_per_token: model.flops_per_token(),
        }
    }
}

/// The complete model, on every rank.
fn whole(trainer: &mut Trainer<Gpt, TextBatch>) -> Result<Gpt> {
    Ok(trainer.ddp().whole()?.whole()?)
}

pub(crate) fn untrained(settings: &Settings, corpus: &Corpus, device: &Device) -> Gpt {
    let config = settings.args.model(corpus.text.vocabulary().size());
    let model = config.init(settings.config.seed, device);
    if settings.args.checkpoint_blocks { model.with_recomputed_blocks() } else { model }
}
