//! Flags that are read, refused and passed on.

use clap::{Command, Parser};

use super::*;

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    launch: LaunchFlags,
}

fn flags(line: &str) -> LaunchFlags {
    let arguments = std::iter::once("program").chain(line.split_whitespace());
    Program::try_parse_from(arguments).unwrap().launch
}

fn options(line: &str) -> Result<AgentOptions, FlagError> {
    flags(line).options("train", Vec::new(), NonZeroU32::MIN)
}

#[test]
fn both_spellings_mean_the_same() {
    let lines = [
        "--nnodes=2 --node-rank=1 --master-addr=a --master-port=9 --max-restarts=3 \
         --log-dir=logs --redirects=1 --tee=0:2 --rdzv-id=x --nproc-per-node=4",
        "--nnodes 2 --node_rank 1 --master_addr a --master_port 9 --max_restarts 3 \
         --log_dir logs --redirects 1 --tee 0:2 --rdzv_id x --nproc_per_node 4",
    ];
    for line in lines {
        let seen = options(line).unwrap();
        let Nodes::Several { nnodes, node_rank, master_addr, master_port } = seen.nodes else {
            panic!("{:?}", seen.nodes);
        };
        assert_eq!((nnodes.get(), node_rank, master_port), (2, 1, 9));
        assert_eq!((master_addr.as_str(), seen.max_restarts), ("a", 3));
        assert_eq!(seen.job_id.as_deref(), Some("x"));
        assert_eq!(seen.logs.redirects, "1".parse().unwrap());
        assert_eq!(seen.logs.tee, "0:2".parse().unwrap());
        let count = flags(line).rank_count().unwrap();
        assert_eq!(count.to_string(), "4");
    }
}

#[test]
fn every_letter_is_the_programs_own() {
    let command = LaunchFlags::augment_args(Command::new(""));
    let letters: Vec<char> = command.get_arguments().filter_map(clap::Arg::get_short).collect();
    assert!(letters.is_empty(), "{letters:?}");
}

#[test]
fn contradictions_are_refused() {
    let cases = [
        ("--node-rank 1", "--node-rank is 1, but --nnodes is 1"),
        ("--nnodes 2 --standalone", "--standalone is for one host"),
        ("--nnodes 2 --master-port 9", "need --master-addr"),
        ("--nnodes 2 --master-addr a", "need --master-port"),
        (
            "--nnodes 2 --rdzv-endpoint=a:0",
            "several nodes need --master-port: a free port on node 0",
        ),
    ];
    for (line, expected) in cases {
        let message = options(line).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn the_endpoint_of_torchrun_says_where_host_0_is() {
    let of = |line| match options(line).unwrap().nodes {
        Nodes::Several { master_addr, master_port, .. } => (master_addr, master_port),
        Nodes::One { port } => (String::new(), port),
    };
    for line in [
        "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29500",
        "--nnodes=2:2 --rdzv_backend=static --rdzv_endpoint=node0:29500",
    ] {
        assert_eq!(of(line), ("node0".to_owned(), 29500), "{line}");
    }
    assert_eq!(of("--nnodes 2 --rdzv-endpoint [fe80::1]:9"), ("fe80::1".to_owned(), 9));
    assert_eq!(of("--rdzv-endpoint localhost:9"), (String::new(), 9));
}

#[test]
fn what_this_launcher_cannot_do_is_refused() {
    let cases = [
        ("--nnodes 1:4", "keeps its hosts from start to end"),
        ("--nnodes 0", "at least 1 host"),
        ("--nnodes many", "whole number of hosts"),
        ("--rdzv-endpoint node0", "expected HOST:PORT"),
        ("--rdzv-endpoint node0:65536", "expected HOST:PORT"),
        ("--rdzv-endpoint fe80::1:9", "expected HOST:PORT"),
        ("--rdzv-endpoint a:9 --master-addr b", "cannot be used with"),
        ("--rdzv-backend etcd", "possible values: c10d, static"),
    ];
    for (line, expected) in cases {
        let arguments = std::iter::once("program").chain(line.split(' '));
        let error = Program::try_parse_from(arguments).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_is_encrypted_can_be_said() {
    assert_eq!(options("--nproc 2").unwrap().tls, None);
    assert_eq!(options("--tls hosts").unwrap().tls, Some(Tls::Hosts));
    let line = ["program", "--tls", "on"];
    let error = Program::try_parse_from(line).unwrap_err().to_string();
    assert!(error.contains("off, hosts or all"), "{error}");
}

#[test]
fn one_rank_without_wishes_needs_no_agent() {
    assert!(!flags("--standalone").need_agent());
    for line in ["--nnodes 2", "--max-restarts 1", "--tee 3"] {
        assert!(flags(line).need_agent(), "{line}");
    }
}
