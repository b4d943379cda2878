//! One rank of the conformance suite as a process: `conformance-rank TRANSPORT CHUNK_BYTES`.
//! Prints the digest of its results.

use std::process::ExitCode;
use std::time::Duration;

use bonfire_collective::{GroupOptions, ProcessGroup, RankEnv};
use bonfire_testkit::{Watchdog, conformance};

fn main() -> ExitCode {
    match run() {
        Ok(digest) => {
            println!("{digest:016x}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<u64, Box<dyn std::error::Error>> {
    let _watchdog = Watchdog::start("conformance-rank", Duration::from_secs(200));
    let mut args = std::env::args().skip(1);
    let (Some(transport), Some(chunk_bytes)) = (args.next(), args.next()) else {
        return Err("usage: conformance-rank TRANSPORT CHUNK_BYTES".into());
    };
    let options = GroupOptions {
        transport: Some(transport.parse()?),
        chunk_bytes: chunk_bytes.parse()?,
        ..GroupOptions::default()
    };
    let group = ProcessGroup::connect(&RankEnv::from_env()?, options)?;
    Ok(conformance::check_all(&group, conformance::Bits::Canonical))
}
