//! `bonfire run`: starts the ranks of a job on this host.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::process::ExitCode;

use anyhow::{Context, bail};
use bonfire_collective::{AgentOptions, Graces, LaunchError, Nodes, OutputLabels, RankCount};
use clap::Args;

/// Start a program as several ranks, on this host or as this host's part of a larger job.
///
/// Each rank gets the environment that torchrun gives: RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Its output is printed line by line behind its rank.
/// When one rank fails, the others are ended, and what the failed rank said comes last.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Ranks to start on this host: a number, `gpu` (one per GPU), `cpu` (one per core), or `auto`
    /// (one per GPU, or per core without one)
    #[arg(
        long,
        alias = "nproc_per_node",
        visible_alias = "nproc",
        value_name = "N|auto|gpu|cpu",
        default_value = "1"
    )]
    nproc_per_node: RankCount,

    /// Hosts of the job; run this command once on each
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    nnodes: NonZeroU32,

    /// This host's number, from 0; host 0 is where the ranks meet
    #[arg(long, alias = "node_rank", value_name = "N", default_value = "0")]
    node_rank: u32,

    /// Name or address of host 0 as the other hosts see it; needed with several hosts
    #[arg(long, alias = "master_addr", value_name = "HOST")]
    master_addr: Option<String>,

    /// TCP port on host 0 where the ranks meet; needed with several hosts, and chosen by the system
    /// on one
    #[arg(
        long,
        alias = "master_port",
        value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    master_port: Option<u16>,

    /// The program of every rank
    program: OsString,

    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs the job and reports how it ended.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    let error = match options(args) {
        Ok(options) => match options.run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => error.into(),
        },
        Err(error) => error,
    };
    eprintln!("error: {error:#}");
    ExitCode::from(error.downcast_ref().map_or(1, LaunchError::exit_code))
}

fn options(args: RunArgs) -> anyhow::Result<AgentOptions> {
    let nodes = if args.nnodes == NonZeroU32::MIN {
        if args.node_rank != 0 {
            bail!("--node-rank is {}, but --nnodes is 1", args.node_rank);
        }
        Nodes::One {
            port: args.master_port.unwrap_or(0),
        }
    } else {
        Nodes::Several {
            nnodes: args.nnodes,
            node_rank: args.node_rank,
            master_addr: args
                .master_addr
                .context("several nodes need --master-addr: the name or address of node 0")?,
            master_port: args
                .master_port
                .context("several nodes need --master-port: a free port on node 0")?,
        }
    };
    Ok(AgentOptions {
        program: args.program,
        args: args.args,
        nproc_per_node: args.nproc_per_node.resolve()?,
        nodes,
        variables: Vec::new(),
        graces: Graces::default(),
        labels: OutputLabels::default(),
    })
}

fn at_least_one(text: &str) -> Result<NonZeroU32, &'static str> {
    let count: u32 = text.parse().map_err(|_| "expected a whole number")?;
    NonZeroU32::new(count).ok_or("a job needs at least 1 host")
}
