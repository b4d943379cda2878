//! Collectives between GPUs, without NCCL and over it.

use std::thread;

// ANCHOR: all
use bonfire_collective::{DType, GroupOptions, ProcessGroup, Rank, ReduceOp, WorldSize};
use bonfire_gpu::{
    Context, CudaGroup, CudaOptions, Device, Driver, Elements, Event, NcclGroup, Neighbours,
};

fn main() -> anyhow::Result<()> {
    let devices = Driver::load()?.devices()?;
    let ranks = ProcessGroup::local(WorldSize::new(2)?, GroupOptions::default())?;
    // What the ranks of one process share. A rank in a process of its own has one for itself.
    let neighbours = Neighbours::new();
    thread::scope(|scope| {
        let ranks: Vec<_> = ranks
            .into_iter()
            .map(|group| {
                let device = &devices[group.rank().index() % devices.len()];
                let neighbours = &neighbours;
                scope.spawn(move || on_gpu(group, device, neighbours))
            })
            .collect();
        for rank in ranks {
            rank.join().expect("no rank panics")?;
        }
        Ok(())
    })
}

fn on_gpu(group: ProcessGroup, device: &Device, neighbours: &Neighbours) -> anyhow::Result<()> {
    let context = Context::retain(device)?;
    let gpus = CudaGroup::new(group, &context, neighbours, CudaOptions::default())?;
    let me = gpus.rank();

    // Memory of the same size on every rank, open to all of them: made once, by all together.
    let buffer = gpus.allocate(1024 * size_of::<f32>())?;
    gpus.write(&buffer, 0, &[me.get() as f32; 1024])?;

    // Queued on the group's stream, behind what is there already; the call does not wait.
    let elements = Elements::first(DType::F32, 1024);
    gpus.all_reduce(&buffer, &elements, ReduceOp::Mean)?;

    // Another stream that is to see the result waits for an event behind it.
    let reduced = Event::new(&context)?;
    gpus.stream().record(&reduced)?;

    // Here the host waits, with a deadline; the failure of any rank comes out here.
    gpus.synchronize()?;
    let mut averages = [0.0_f32; 1024];
    gpus.read(&buffer, 0, &mut averages)?;
    assert_eq!(averages, [0.5; 1024]);

    // Block r of every rank goes to rank r, from one buffer to another.
    let output = gpus.allocate(1024 * size_of::<f32>())?;
    gpus.write(&buffer, 0, &[me.get() as f32; 1024])?;
    gpus.all_to_all(&buffer, &output, &elements)?;
    gpus.read(&output, 0, &mut averages)?;
    assert_eq!((averages[0], averages[1023]), (0.0, 1.0));

    // Memory is freed with the group, or by all ranks together.
    gpus.release(output)?;
    println!("rank {me}: data go by {:?}", gpus.path());
    over_nccl(&gpus)
}
// ANCHOR_END: all

// ANCHOR: nccl
/// The same over NCCL: its ranks may be on several hosts, each with a GPU of its own.
fn over_nccl(gpus: &CudaGroup) -> anyhow::Result<()> {
    let group = gpus.process_group().clone();
    let timeout = CudaOptions::default().timeout;
    let over_nccl = match NcclGroup::new(group, gpus.context(), timeout) {
        Ok(over_nccl) => over_nccl,
        // On every rank, if one lacks the library or NCCL refuses it: the group below goes on.
        Err(error) => {
            println!("not over NCCL: {error}");
            return Ok(());
        }
    };
    let me = over_nccl.rank();
    let buffer = over_nccl.allocate(3 * size_of::<i64>())?;
    over_nccl.write(&buffer, 0, &[1_i64, 2, 3])?;
    let elements = Elements::first(DType::I64, 3);
    over_nccl.all_reduce(&buffer, &elements, ReduceOp::Sum)?;

    // Two ranks alone.
    match me.get() {
        0 => over_nccl.send(&buffer, &elements, Rank::new(1))?,
        _ => over_nccl.recv(&buffer, &elements, Rank::new(0))?,
    }
    let mut sums = [0_i64; 3];
    over_nccl.read(&buffer, 0, &mut sums)?;
    assert_eq!(sums, [2, 4, 6]);
    println!("rank {me}: the same over NCCL");
    Ok(())
}
// ANCHOR_END: nccl
