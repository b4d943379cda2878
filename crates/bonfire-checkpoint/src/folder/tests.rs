//! What is there after a history of saves, damages and resumes.

use std::collections::BTreeSet;

use bonfire_testkit::is_full;

use super::*;

const FILE: &str = "model";

/// Saves a step, with a content by which it can be known again.
fn save(folder: &Folder, step: u64, content: &str, keep: Keep) -> Result<(), CheckpointError> {
    let mut draft = folder.begin(Milestone { step, metric: None }, 1)?;
    draft.add(FILE, content.as_bytes())?;
    draft.finish()?;
    folder.retain(keep)
}

fn newest(folder: &Folder) -> Option<(u64, String)> {
    let found = folder.newest().unwrap()?;
    let content = String::from_utf8(found.read(FILE).unwrap()).unwrap();
    Some((found.milestone.step, content))
}

fn names(folder: &Folder) -> Vec<String> {
    let mut names: Vec<String> =
        entries(folder.path()).unwrap().iter().map(|path| name_of(path)).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

fn at(step: u64, content: &str) -> Option<(u64, String)> {
    Some((step, content.to_owned()))
}

/// The same length, and other bits.
fn flip(path: &Path) {
    let file = path.join(FILE);
    let mut bytes = fs::read(&file).unwrap();
    bytes[0] ^= 1;
    fs::write(&file, bytes).unwrap();
}

fn cut(path: &Path) {
    fs::write(path.join(FILE), "").unwrap();
}

#[test]
fn what_was_just_saved_stays_beside_damaged_checkpoints_of_later_steps() {
    for damage in [cut, flip] {
        for keep in [1, 2] {
            let place = tempfile::tempdir().unwrap();
            let path = |name: &str| place.path().join(name);
            let folder = Folder::new(place.path());
            for step in [100, 200, 300] {
                save(&folder, step, "first", Keep::last(3)).unwrap();
            }
            damage(&path("step-000000200"));
            damage(&path("step-000000300"));
            drop(folder);
            let folder = Folder::new(place.path());
            assert_eq!(newest(&folder), at(100, "first"));
            save(&folder, 150, "second", Keep::last(keep)).unwrap();
            assert_eq!(newest(&folder), at(150, "second"));
            let whole = ["step-000000100", "step-000000150"];
            assert_eq!(names(&folder), whole[2 - keep..]);
        }
    }
}

#[test]
fn a_checkpoint_with_the_name_of_a_damaged_one_that_is_gone_stays() {
    let place = tempfile::tempdir().unwrap();
    save(&Folder::new(place.path()), 3, "first", Keep::last(1)).unwrap();
    flip(&place.path().join("step-000000003"));
    let folder = Folder::new(place.path());
    folder.newest().unwrap_err();
    for step in 1..5 {
        save(&folder, step, "second", Keep::last(1)).unwrap();
        assert_eq!(newest(&folder), at(step, "second"));
    }
}

#[test]
fn a_link_to_nothing_with_the_name_of_a_checkpoint_is_passed_over() {
    let place = tempfile::tempdir().unwrap();
    let link = place.path().join("step-000000003");
    std::os::unix::fs::symlink(place.path().join("gone"), &link).unwrap();
    let folder = Folder::new(place.path());
    save(&folder, 3, "first", Keep::last(1)).unwrap();
    assert_eq!(newest(&folder), at(3, "first"));
}

#[test]
fn a_training_that_begins_again_sets_later_checkpoints_aside() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::new(place.path());
    for step in [800, 900, 1000] {
        save(&folder, step, "first", Keep::default()).unwrap();
    }
    drop(folder);
    let folder = Folder::new(place.path());
    for step in [100, 200, 300, 400, 950] {
        save(&folder, step, "second", Keep::last(2)).unwrap();
        assert_eq!(newest(&Folder::new(place.path())), at(step, "second"));
    }
    let here = ["earlier-1", "step-000000400", "step-000000950"];
    assert_eq!(names(&folder), here);
    let earlier = Folder::new(place.path().join("earlier-1"));
    assert_eq!(newest(&earlier), at(1000, "first"));
    assert_eq!(names(&earlier).len(), 3);
    folder.set_all_aside().unwrap();
    assert_eq!(newest(&folder), None);
    assert_eq!(names(&folder), ["earlier-1", "earlier-2"]);
}

#[test]
fn a_checkpoint_that_fails_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::new(place.path());
    let mut draft = folder.begin(Milestone { step: 1, metric: None }, 1).unwrap();
    draft.add(FILE, b"half").unwrap();
    assert_eq!(names(&folder), [".unfinished-step-000000001"]);
    drop(draft);
    assert!(names(&folder).is_empty());
}

#[test]
fn two_trainings_in_one_folder_notice_each_other() {
    let place = tempfile::tempdir().unwrap();
    let (first, second) = (Folder::new(place.path()), Folder::new(place.path()));
    save(&first, 1, "first", Keep::default()).unwrap();
    let mut draft = first.begin(Milestone { step: 2, metric: None }, 1).unwrap();
    second.prepare().unwrap();
    let error = save(&second, 1, "second", Keep::default()).unwrap_err().to_string();
    let by = format!(
        "another training saves in {}: process {} on ",
        place.path().display(),
        std::process::id()
    );
    assert!(error.starts_with(&by), "{error}");
    assert!(second.set_all_aside().is_err());
    // It may read, and has removed nothing of the other's.
    assert_eq!(newest(&second), at(1, "first"));
    draft.add(FILE, b"first").unwrap();
    draft.finish().unwrap();
    drop(first);
    save(&second, 3, "second", Keep::last(3)).unwrap();
    assert_eq!(names(&second).len(), 3);
}

#[test]
fn a_copy_with_another_name_is_the_one_that_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::new(place.path());
    save(&folder, 100, "first", Keep::default()).unwrap();
    let (from, to) = (place.path().join("step-000000100"), place.path().join("step-000000100.9"));
    fs::create_dir(&to).unwrap();
    for file in [FILE, MANIFEST] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    save(&folder, 200, "first", Keep::last(2)).unwrap();
    assert_eq!(names(&folder), ["step-000000100.9", "step-000000200"]);
}

#[test]
fn a_metric_that_comes_later_counts() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::new(place.path());
    let keep = Keep::last(1).and_best(Best::Lowest);
    for (step, metric) in [(1, 0.5), (2, 0.1), (3, 0.9), (4, 0.3)] {
        save(&folder, step, "", keep).unwrap();
        folder.rate(Milestone { step, metric: Some(metric) }).unwrap();
        folder.retain(keep).unwrap();
    }
    assert_eq!(names(&folder), ["step-000000002", "step-000000004"]);
    let found = Folder::new(place.path()).newest().unwrap().unwrap();
    assert_eq!(found.milestone.metric, Some(0.3));
}

/// What is expected of a folder, without looking at it.
#[derive(Default)]
struct Model {
    /// The present history, the newest at the end.
    history: Vec<Kept>,
    saved: u64,
    step: u64,
}

struct Kept {
    step: u64,
    content: String,
    is_whole: bool,
    /// To those who save.
    is_known: bool,
}

impl Model {
    fn save(&mut self, by: u64, keep: usize) -> (u64, String) {
        self.step += by;
        self.saved += 1;
        let (step, content) = (self.step, format!("content {}", self.saved));
        self.history.retain(|kept| kept.step < step && !kept.is_known);
        self.history.push(Kept { step, content: content.clone(), is_whole: true, is_known: false });
        let surplus = self.history.len().saturating_sub(keep);
        self.history.drain(..surplus);
        (step, content)
    }

    fn newest(&mut self) -> Option<(u64, String)> {
        let place = self.history.iter().rposition(|kept| kept.is_whole);
        let later = place.map_or(0, |place| place + 1);
        self.history[later..].iter_mut().for_each(|kept| kept.is_known = true);
        let kept = &self.history[place?];
        Some((kept.step, kept.content.clone()))
    }
}

/// Random events, of which the seed is printed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn in_every_history_the_newest_whole_checkpoint_and_the_one_just_saved_are_there() {
    let mut reached = BTreeSet::new();
    let histories = if is_full() { 1200 } else { 60 };
    for seed in 0..histories {
        let mut random = Random(seed);
        let place = tempfile::tempdir().unwrap();
        let (mut folder, mut model, mut keep) = (Folder::new(place.path()), Model::default(), 2);
        let mut events = Vec::new();
        for _ in 0..12 {
            let event = random.below(10);
            events.push(event);
            let case = format!("seed {seed}, events {events:?}");
            match event {
                0..5 => {
                    let expected = model.save(1 + random.below(3), keep);
                    save(&folder, expected.0, &expected.1, Keep::last(keep)).unwrap();
                    let found = newest(&Folder::new(place.path()));
                    assert_eq!(found, Some(expected), "just saved: {case}");
                }
                5..7 if !model.history.is_empty() => {
                    let which = random.below(model.history.len() as u64) as usize;
                    let kept = &mut model.history[which];
                    let path = folder.revisions(kept.step).unwrap().pop().unwrap();
                    if event == 5 && kept.is_whole {
                        flip(&path);
                    } else {
                        cut(&path);
                        kept.is_known = true;
                    }
                    kept.is_whole = false;
                }
                // A new process, which resumes or not.
                7..9 => {
                    drop(folder);
                    folder = Folder::new(place.path());
                    for kept in &mut model.history {
                        let path = folder.revisions(kept.step).unwrap().pop().unwrap();
                        kept.is_known = fs::metadata(path.join(FILE)).unwrap().len() == 0;
                    }
                    model.step = 0;
                    if event == 7 {
                        let expected = model.newest();
                        model.step = expected.as_ref().map_or(0, |(step, _)| *step);
                        match folder.newest() {
                            Err(CheckpointError::AllDamaged { .. }) => {
                                assert_eq!(expected, None, "{case}")
                            }
                            found => {
                                let found = found.unwrap().map(|found| found.milestone.step);
                                assert_eq!(found, expected.map(|(step, _)| step), "{case}");
                            }
                        }
                    }
                    reached.insert((event, model.history.len()));
                }
                _ => keep = 1 + random.below(3) as usize,
            }
        }
    }
    assert!(reached.len() >= 6, "histories are too alike: {reached:?}");
}

/// To open a pipe takes until another process opens it, too.
#[test]
fn a_pipe_in_place_of_a_file_is_not_waited_for() {
    let make = |path: &Path| {
        let _ = fs::remove_file(path);
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    for name in [FILE, MANIFEST, ".lock"] {
        let place = tempfile::tempdir().unwrap();
        for step in [100, 200] {
            save(&Folder::new(place.path()), step, "content", Keep::last(3)).unwrap();
        }
        let folder = Folder::new(place.path());
        if name == ".lock" {
            make(&place.path().join(name));
            let error = save(&folder, 300, "content", Keep::last(3)).unwrap_err().to_string();
            assert!(error.contains("it is not a file"), "{error}");
        } else {
            make(&place.path().join("step-000000200").join(name));
            assert_eq!(newest(&folder), at(100, "content"));
        }
    }
}
