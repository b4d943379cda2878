//! A process that saves is killed, and disks are full, at any moment of saving. `BONFIRE_TESTS=full` kills 300 times.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use bonfire_checkpoint::{CheckpointError, Folder, Found, Keep, Milestone};
use bonfire_testkit::{SmallDisk, again, is_full, task};

const KEEP: Keep = Keep::last(2);

const PAGE: u64 = 4096;

/// Of the files of a checkpoint, its manifest and its folder not counted.
const PAGES: [u64; 3] = [12, 7, 1];

fn save(folder: &Folder, step: u64) -> Result<(), CheckpointError> {
    folder.retain(KEEP)?;
    let mut draft = folder.begin(Milestone { step, metric: None }, 1)?;
    let [model, moments, state] = PAGES.map(|pages| vec![step as u8; (pages * PAGE) as usize]);
    for (name, bytes) in [("model", model), ("moments", moments)] {
        let path = draft.path_of(name);
        fs::write(&path, bytes).map_err(|source| CheckpointError::Io {
            action: "write",
            path,
            source,
        })?;
        draft.adopt(name)?;
    }
    draft.add("state", &state)?;
    draft.finish()?;
    folder.retain(KEEP)
}

fn newest(folder: &Path) -> u64 {
    let found = Folder::new(folder).newest().unwrap();
    found.map_or(0, |found| found.milestone.step)
}

fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_checkpoint =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().contains("step-");
    entries.filter(is_checkpoint).collect()
}

/// The child: saves until it is killed, and says what it has saved.
#[test]
fn saver() {
    let Some(folder) = task() else {
        return;
    };
    let folder = Folder::new(folder);
    let first = newest(folder.path());
    for step in first + 1.. {
        save(&folder, step).unwrap();
        println!("saved {step}");
    }
}

#[test]
fn a_process_that_is_killed_while_it_saves_leaves_whole_checkpoints_and_no_more() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    // One more than are kept, and a page for each folder, manifest and lock.
    let pages = 3 * (PAGES.iter().sum::<u64>() + 2) + 4;
    let disk = SmallDisk::mount(folder, pages * PAGE);
    if disk.is_none() {
        println!("this user cannot mount a small file system: room is not limited");
    }
    let rounds = if is_full() { 300 } else { 12 };
    for round in 0..rounds {
        let mut child = again("saver", folder.to_str().unwrap());
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let random = RandomState::new().hash_one(round);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut saved =
            lines.filter_map(|line| line.unwrap().split_once("saved ")?.1.parse::<u64>().ok());
        let mut last = 0;
        for _ in 0..1 + random % 5 {
            last = saved.next().unwrap_or(last);
        }
        sleep(Duration::from_micros((random >> 8) % 2000));
        child.kill().unwrap();
        child.wait().unwrap();
        let said = format!("round {round}, {last} was saved");
        assert!(last > 0, "{said}");
        assert!(newest(folder) >= last, "{said}");
        let whole = checkpoints(folder)
            .into_iter()
            .filter(|path| !path.to_str().unwrap().contains(".unfinished-"));
        whole.for_each(|path| drop(Found::at(path).unwrap()));
    }
    let next = newest(folder) + 1;
    save(&Folder::new(folder), next).unwrap();
    assert_eq!(newest(folder), next);
    assert_eq!(checkpoints(folder).len(), KEEP.last);
}

#[test]
fn a_disk_that_is_full_at_any_moment_keeps_its_checkpoints_and_its_room() {
    let place = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(place.path(), 256 * PAGE) else {
        println!("skipped: this user cannot mount a small file system");
        return;
    };
    let (path, filler) = (place.path().join("c"), place.path().join("filler"));
    let folder = Folder::new(&path);
    for step in 1..3 {
        save(&folder, step).unwrap();
    }
    let (mut last, mut failures) = (2, 0);
    for free in 0..30 {
        // Fills the disk, then frees this many pages.
        let mut pages = 256;
        while fs::write(&filler, vec![0; (pages * PAGE) as usize]).is_err() {
            pages -= 1;
        }
        fs::write(&filler, vec![0; (pages.saturating_sub(free) * PAGE) as usize]).unwrap();
        let saved = save(&folder, last + 1);
        match saved {
            Ok(()) => last += 1,
            Err(error) => {
                failures += 1;
                let error = error.to_string();
                assert!(
                    error.contains("No space left") && error.contains("room for one more"),
                    "{error}"
                );
            }
        }
        assert_eq!(newest(&path), last, "{free} pages were free");
        assert_eq!(checkpoints(&path).len(), KEEP.last, "{free} pages were free");
        // A removed file has its room until the children of other tests, which have it open, are programs of their own.
        fs::write(&filler, "").unwrap();
        last += 1;
        save(&folder, last).unwrap();
    }
    assert!((15..30).contains(&failures), "{failures} saves failed");
}
