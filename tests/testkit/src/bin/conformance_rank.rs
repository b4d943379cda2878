//! One rank of the conformance suite as a process: `conformance-rank WAY CHUNK_BYTES [ALGORITHM]`,
//! where the way is as in [`bonfire_testkit::over`]. With an algorithm, results may be folded in any
//! order; with `large` in its place, it is the part of the suite for large data. Prints the digest of
//! its results.

use std::process::ExitCode;
use std::time::Duration;

use bonfire_collective::ProcessGroup;
use bonfire_launch::rank_from_env;
use bonfire_testkit::conformance::{Bits, check_all, check_large};
use bonfire_testkit::{Watchdog, over};

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
    let (Some(way), Some(chunk_bytes)) = (args.next(), args.next()) else {
        return Err("usage: conformance-rank WAY CHUNK_BYTES [ALGORITHM|large]".into());
    };
    let last = args.next();
    let is_large = last.as_deref() == Some("large");
    let algorithm = last.filter(|_| !is_large).map(|name| name.parse()).transpose()?;
    let options = over(&way)?.with_algorithm(algorithm).with_chunk_bytes(chunk_bytes.parse()?);
    let bits = match algorithm {
        None => Bits::Canonical,
        Some(_) => Bits::AnyOrder,
    };
    let group = ProcessGroup::connect(&rank_from_env()?, options)?;
    Ok(if is_large { check_large(&group) } else { check_all(&group, bits) })
}
