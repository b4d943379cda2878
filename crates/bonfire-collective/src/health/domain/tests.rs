use bonfire_plan::WorldSize;

use super::*;
use crate::health::failure::Corruption;

fn group(domain: &Arc<Domain>, number: u32, members: &[u32]) -> Arc<Poison> {
    let poison = Arc::new(Poison::new(WorldSize::new(members.len() as u32).unwrap()));
    join(domain, &poison, (number, members));
    poison
}

fn join(domain: &Arc<Domain>, poison: &Arc<Poison>, (number, members): (u32, &[u32])) {
    let bond = Bond {
        domain: Arc::clone(domain),
        number,
        members: members.iter().copied().map(Rank::new).collect(),
        peers: None,
    };
    Domain::join(poison, bond);
}

fn peer(rank: u32) -> Failure {
    Failure::Peer { rank: Rank::new(rank), cause: "it fell".to_owned() }
}

#[test]
fn each_group_names_the_culprit_by_its_own_number() {
    let domain = Arc::default();
    let [world, pair, other] =
        [(0, &[0, 1, 2][..]), (5, &[2, 1]), (7, &[0, 1])].map(|(n, of)| group(&domain, n, of));
    assert!(pair.set(peer(0)));
    assert!(!pair.set(peer(1)) && !world.set(peer(1)));
    assert_eq!(world.failure(), Some(peer(2)));
    let elsewhere = other.failure().unwrap();
    assert_eq!(elsewhere.to_string(), "rank 2 of the job failed: it fell");
    // As a rank hears it that is in a group of the culprit's.
    let there = Arc::default();
    let [heard, of_culprit] = [(7, [0, 1]), (9, [1, 2])].map(|(n, of)| group(&there, n, &of));
    assert!(heard.set(elsewhere));
    assert_eq!(of_culprit.failure(), Some(peer(1)));
}

#[test]
fn what_names_nobody_is_reported_in_words() {
    let domain = Arc::default();
    let [pair, world] = [(5, &[2, 1][..]), (0, &[0, 1, 2])].map(|(n, of)| group(&domain, n, of));
    let failure = Failure::Corrupted(Box::new(Corruption {
        source: Rank::new(0),
        target: Rank::new(1),
        seq: 3,
    }));
    assert!(pair.set(failure.clone()));
    assert_eq!(pair.failure(), Some(failure.clone()));
    let text = world.failure().unwrap().to_string();
    assert_eq!(text, format!("{failure} (in group 5)"));
}

#[test]
fn whoever_joins_late_ends_like_the_others() {
    let domain = Arc::default();
    let world = group(&domain, 0, &[0, 1]);
    let failed = Arc::new(Poison::new(WorldSize::new(2).unwrap()));
    failed.set(peer(0));
    assert!(world.failure().is_none(), "it is not bound yet");
    join(&domain, &failed, (2, &[1, 0]));
    assert_eq!(world.failure(), Some(peer(1)));
    assert_eq!(group(&domain, 4, &[1, 0]).failure(), Some(peer(0)));
}

#[test]
fn groups_that_are_gone_are_forgotten() {
    let domain = Arc::default();
    for number in 0..100 {
        drop(group(&domain, number, &[0]));
    }
    assert_eq!(domain.state.lock().groups.len(), 1);
}
