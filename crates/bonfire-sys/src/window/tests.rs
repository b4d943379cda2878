use super::*;
use std::sync::Barrier;

const RANKS: usize = 3;

/// Miri runs a thousand times slower.
const LENS: &[u32] = if cfg!(miri) {
    &[0, 2, 40]
} else {
    &[0, 1, 2, 3, 4, 100, 1001]
};
const ROUNDS: u32 = if cfg!(miri) { 2 } else { 20 };

fn boards() -> Vec<Board> {
    Board::for_threads(RANKS).unwrap()
}

/// Every rank doubles its shard of every window, in steps of a few elements.
fn double_all(board: &mut Board, data: &mut [u32], barrier: &Barrier) {
    board.open(data, 7, |windows| {
        barrier.wait();
        let shard = windows.shard();
        for start in shard.clone().step_by(7) {
            let range = start..(start + 7).min(shard.end);
            let visited = windows.visit(range, |views| {
                for element in views.iter_mut().flat_map(|view| view.iter_mut()) {
                    *element *= 2;
                }
            });
            visited.unwrap();
        }
        barrier.wait();
    });
}

#[test]
fn every_rank_reaches_its_shard_of_every_window_and_no_other() {
    for &len in LENS {
        let barrier = Barrier::new(RANKS);
        std::thread::scope(|scope| {
            for (me, mut board) in boards().into_iter().enumerate() {
                let barrier = &barrier;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut data: Vec<u32> = (0..len).map(|i| i + me as u32 + round).collect();
                        let expected: Vec<u32> = data.iter().map(|value| value * 2).collect();
                        double_all(&mut board, &mut data, barrier);
                        assert_eq!(data, expected, "rank {me}, {len} elements");
                    }
                });
            }
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
fn windows_in_arenas_of_other_mappings() {
    let arenas: Vec<Arena> = (0..RANKS)
        .map(|_| Arena::new(PANE_BYTES, 1 << 20).unwrap())
        .collect();
    let barrier = Barrier::new(RANKS);
    std::thread::scope(|scope| {
        for (me, arena) in arenas.iter().enumerate() {
            // As another process would have it: mapped again, at other addresses.
            let open = |(rank, theirs): (usize, &Arena)| {
                if rank == me {
                    return Arc::clone(theirs.region());
                }
                let file = theirs.region().descriptor().unwrap();
                let file = file.try_clone_to_owned().unwrap();
                Arc::new(Region::open(file, theirs.region().len()).unwrap())
            };
            let regions = arenas.iter().enumerate().map(open).collect();
            let (arena, barrier) = (arena.clone(), &barrier);
            scope.spawn(move || {
                let mut board = Board::for_processes(arena.clone(), regions, me).unwrap();
                assert!(!board.reaches(&[1_u32; 4]), "memory of this process only");
                let _elsewhere = arena.allocate::<u8>(me * 5000 + 1).unwrap();
                let mut data = arena.allocate::<u32>(5000).unwrap();
                data.iter_mut().for_each(|value| *value = me as u32 + 1);
                assert!(board.reaches(&data[3..]));
                double_all(&mut board, &mut data[3..4003], barrier);
                let doubled = 2 * (me as u32 + 1);
                assert!(data[3..4003].iter().all(|value| *value == doubled));
                assert!(data[..3].iter().all(|value| *value == me as u32 + 1));
            });
        }
    });
}

#[test]
fn a_window_that_is_closed_or_differs_is_an_error() {
    let mut boards = boards();
    let (first, rest) = boards.split_first_mut().unwrap();
    let outcome = first.open(&mut [1_u32; 9], 7, |windows| windows.visit(0..1, |_| ()));
    assert_eq!(outcome, Err(Shut::Closed { rank: 1 }));
    let (second, _) = rest.split_first_mut().unwrap();
    let outcome = second.open(&mut [1_u32; 8], 7, |_| {
        first.open(&mut [1_u32; 9], 7, |windows| windows.visit(0..1, |_| ()))
    });
    assert_eq!(outcome, Err(Shut::Differs { rank: 1 }));
}

#[test]
#[should_panic(expected = "of shard")]
fn another_ranks_shard_is_out_of_reach() {
    let mut boards = boards();
    boards[0].open(&mut [1_u32; 9], 7, |windows| {
        let _ = windows.visit(2..4, |_| ());
    });
}

/// Each end would take itself for rank 0, and both for the owner of the same elements.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
fn boards_that_disagree_about_the_ranks_open_nothing_to_each_other() {
    let arenas = [(); 2].map(|()| Arena::new(PANE_BYTES, 1 << 20).unwrap());
    let regions = |first: usize| {
        let order = [first, 1 - first];
        order
            .map(|index| Arc::clone(arenas[index].region()))
            .to_vec()
    };
    let board = |mine: usize| Board::for_processes(arenas[mine].clone(), regions(mine), 0);
    let [mut first, mut second] = [0, 1].map(|mine| board(mine).unwrap());
    let error = board(0).unwrap_err();
    assert_eq!(error.to_string(), "the window of rank 0 is already claimed");
    let [mut one, mut two] = [0, 1].map(|index: usize| arenas[index].allocate::<u32>(8).unwrap());
    let outcome = first.open(&mut one[..], 7, |windows| {
        second.open(&mut two[..], 7, |_| windows.visit(0..1, |_| ()))
    });
    assert_eq!(outcome, Err(Shut::Differs { rank: 1 }));
}

/// A peer that died inside is a lease that never empties.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
fn a_buffer_that_a_peer_never_leaves_is_detached_and_its_neighbours_kept() {
    let arena = Arena::new(PANE_BYTES, 1 << 20).unwrap();
    let region = Arc::clone(arena.region());
    let file = region.descriptor().unwrap().try_clone_to_owned().unwrap();
    let theirs = Region::open(file, region.len()).unwrap();
    let mut board = Board::for_processes(arena.clone(), vec![Arc::clone(&region)], 0).unwrap();
    let mut data = arena.allocate::<u8>(3 * 4096).unwrap();
    data.fill(5);
    let offset = arena.offset_of(&data).unwrap();
    board.open(&mut data[100..9000], 7, |windows| {
        assert!(windows.board.pane(0).lease.enter(), "the peer that dies");
    });
    assert!(
        data[..100]
            .iter()
            .chain(&data[9000..])
            .all(|byte| *byte == 5)
    );
    assert!(
        data[100..9000].iter().all(|byte| *byte == 0),
        "void content"
    );
    // SAFETY: inside the mapping.
    let late = unsafe { theirs.base().add(offset + 200) };
    // SAFETY: nobody else has this mapping's byte, which is no longer the buffer's.
    unsafe { late.write(77) };
    assert_eq!(data[200], 0, "a late write does not arrive");
}
