//! Workers that take steps alone between two exchanges.

use bonfire_train::diloco::{Diloco, DilocoConfig, OuterGradients};
use bonfire_train::{Axis, Digest};

use super::*;

const STEPS: u64 = 7;

/// The batches of a rank alone.
fn of_rank(world: &World) -> impl Fn(u64) -> Batch + Send + Sync + use<> {
    let (rank, device) = (world.rank().index(), world.device().autodiff());
    move |pass| batch(&[pass as usize, 3 * rank + 1], &device)
}

fn config_of_workers(words: &[&str]) -> Config {
    let base =
        ["steps=7", "batch.accumulation=1", "schedule.warmup_steps=0", "schedule.decay=constant"];
    config(&[&base[..], words].concat())
}

fn trained_apart(ranks: u32, words: &[&str]) -> Result<Vec<String>> {
    spawn(ranks, |world| {
        let parts = (model(&world.device().autodiff()), Data::stream(of_rank(&world)));
        let mut trainer = prepare(&world, &config_of_workers(words), parts)?;
        while let Some(batch) = trainer.next_batch()? {
            trainer.step(batch, loss)?;
        }
        let digest = Digest::of(&trainer.ddp().whole()?)?.to_string();
        trainer.finish()?;
        Ok::<_, Error>(digest)
    })
}

/// The same training as a loop of its own.
fn own_loop_apart(ranks: u32, mesh: &str, options: DilocoConfig) -> Vec<String> {
    let digests = spawn(ranks, |world| {
        let mesh = world.mesh(mesh)?;
        let model = model(&world.device().autodiff());
        let (mut diloco, model) = Diloco::new(model, &mesh, options)?;
        let mut ddp = Ddp::new(model, mesh.sub(Axis::DpShard))?;
        let adamw = bonfire_optim::AdamWConfig::new().with_epsilon(1e-8);
        let mut optimizer = adamw.with_weight_decay(0.0).init();
        for pass in 0..STEPS {
            let batch = of_rank(&world)(pass);
            let done = ddp.backward(|model| loss(model, batch))?;
            ddp.step(&mut optimizer, 0.01, done.gradients.clip(Clip::Norm(1.0))?)?;
            diloco.step_in(&mut ddp)?;
        }
        diloco.finish_in(&mut ddp)?;
        Ok::<_, Error>(Digest::of(&ddp.whole()?)?.to_string())
    });
    digests.unwrap()
}

#[test]
fn workers_are_the_loop_that_one_would_write() {
    let every = DilocoConfig::default().with_local_steps(3.try_into().unwrap());
    let int8 = every.with_outer_gradients(OuterGradients::Int8);
    for (ranks, mesh, options, words) in [
        (2, "dp_replicate=2", every, &[][..]),
        (2, "dp_replicate=-1", int8, &["diloco.outer_gradients=int8"]),
        (4, "dp_replicate=2,dp_shard=2", every, &["placement=zero1"]),
    ] {
        let shape = format!("mesh={mesh}");
        let words = [&["diloco.local_steps=3", &*shape][..], words].concat();
        let trained = trained_apart(ranks, &words).unwrap();
        assert_eq!(trained, own_loop_apart(ranks, mesh, options), "{words:?}");
        assert!(trained.iter().all(|digest| *digest == trained[0]), "all end with the same");
        assert_ne!(trained, trained_apart(ranks, &[&shape]).unwrap(), "they train apart");
    }
}

#[test]
fn what_workers_cannot_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = format!("checkpoints.folder={}", folder.path().display());
    let workers = "mesh=dp_replicate=-1";
    for (words, says) in [
        ([workers, &*checkpoints], "leave checkpoints.folder out"),
        (["mesh=dp=-1", "seed=3"], "set mesh=dp_replicate=-1"),
        ([workers, "placement=zero3"], "choose placement zero1 or zero2"),
        ([workers, "offload.parameters=memory"], "use offload.optimizer"),
        ([workers, "precision.compute=f16"], "falls behind"),
        (["mesh=pp=2", "seed=3"], "pp"),
        (["mesh=cp=2", "seed=3"], "cp"),
    ] {
        let words = [&["diloco.local_steps=3"][..], &words].concat();
        let error = format!("{:?}", trained_apart(2, &words).unwrap_err());
        assert!(error.contains(says), "{words:?}: {error}");
    }
}
