//! One rank of the conformance suite as a process: `conformance-rank TRANSPORT CHUNK_BYTES
//! [ALGORITHM]`, where `auto` is the best transport. With an algorithm, results may be folded in any
//! order. Prints the digest of its results.

use std::process::ExitCode;
use std::time::Duration;

use bonfire_collective::{GroupOptions, ProcessGroup, RankEnv};
use bonfire_testkit::Watchdog;
use bonfire_testkit::conformance::{Bits, check_all};

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
        return Err("usage: conformance-rank TRANSPORT CHUNK_BYTES [ALGORITHM]".into());
    };
    let algorithm = args.next().map(|name| name.parse()).transpose()?;
    let transport = match transport.as_str() {
        "auto" => None,
        name => Some(name.parse()?),
    };
    let options = GroupOptions {
        transport,
        algorithm,
        chunk_bytes: chunk_bytes.parse()?,
        ..GroupOptions::default()
    };
    let bits = match algorithm {
        None => Bits::Canonical,
        Some(_) => Bits::AnyOrder,
    };
    let group = ProcessGroup::connect(&RankEnv::from_env()?, options)?;
    Ok(check_all(&group, bits))
}
