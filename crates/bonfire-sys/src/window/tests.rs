use super::*;
use std::sync::Barrier;

const RANKS: usize = 3;

/// Miri runs a thousand times slower.
const LENS: &[u32] = if cfg!(miri) { &[0, 2, 40] } else { &[0, 1, 2, 3, 4, 100, 1001] };
const ROUNDS: u32 = if cfg!(miri) { 2 } else { 20 };

fn boards() -> Vec<Board> {
    Board::for_threads(RANKS).unwrap()
}

/// What the process of rank `me` gets from the others.
fn descriptors(arenas: &[Arena], me: usize) -> Vec<OwnedFd> {
    let peers = arenas.iter().enumerate().filter(|(rank, _)| *rank != me);
    peers.map(|(_, arena)| descriptor(arena)).collect()
}

fn descriptor(arena: &Arena) -> OwnedFd {
    // SAFETY: the tests use it as another process would: for a board, or under a closed window.
    let descriptor = unsafe { arena.descriptor() };
    descriptor.try_clone_to_owned().unwrap()
}

/// The board of rank `me`, mapped as another process would have it, at other addresses.
fn board_among(arenas: &[Arena], me: usize) -> Result<Board, OpenError> {
    // SAFETY: each arena is of one rank, and nobody but boards has the descriptors.
    unsafe { Board::for_processes(arenas[me].clone(), me, descriptors(arenas, me)) }
}

/// Every rank doubles its shard of every window, in steps of a few elements.
fn double_all(board: &mut Board, data: &mut [u32], barrier: &Barrier) {
    board.open(View::in_place(data), 7, |windows| {
        barrier.wait();
        let shard = windows.shard();
        for start in shard.clone().step_by(7) {
            let range = start..(start + 7).min(shard.end);
            let visited = windows.visit(range, |views| {
                for element in views.iter_mut().flat_map(|view| view.target.iter_mut()) {
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
    let arenas: Vec<Arena> = (0..RANKS).map(|_| Arena::new(PANE_BYTES, 1 << 20).unwrap()).collect();
    let barrier = Barrier::new(RANKS);
    std::thread::scope(|scope| {
        for (me, arena) in arenas.iter().enumerate() {
            let mut board = board_among(&arenas, me).unwrap();
            let (arena, barrier) = (arena.clone(), &barrier);
            scope.spawn(move || {
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
    let outcome =
        first.open(View::in_place(&mut [1_u32; 9]), 7, |windows| windows.visit(0..1, |_| ()));
    assert_eq!(outcome, Err(Shut::Closed { rank: 1 }));
    let (second, _) = rest.split_first_mut().unwrap();
    let outcome = second.open(View::in_place(&mut [1_u32; 8]), 7, |_| {
        first.open(View::in_place(&mut [1_u32; 9]), 7, |windows| windows.visit(0..1, |_| ()))
    });
    assert_eq!(outcome, Err(Shut::Differs { rank: 1 }));
}

#[test]
#[should_panic(expected = "of shard")]
fn another_ranks_shard_is_out_of_reach() {
    let mut boards = boards();
    boards[0].open(View::in_place(&mut [1_u32; 9]), 7, |windows| {
        let _ = windows.visit(2..4, |_| ());
    });
}

/// Each end would take itself for rank 0, and both for the owner of the same elements.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
fn boards_that_disagree_about_the_ranks_open_nothing_to_each_other() {
    let arenas = [(); 2].map(|()| Arena::new(PANE_BYTES, 1 << 20).unwrap());
    let board = |mine: usize| {
        let peers = vec![descriptor(&arenas[1 - mine])];
        // SAFETY: each board has an arena of its own; that both take themselves for rank 0 is the test.
        unsafe { Board::for_processes(arenas[mine].clone(), 0, peers) }
    };
    let [mut first, mut second] = [0, 1].map(|mine| board(mine).unwrap());
    assert!(matches!(board(0), Err(OpenError::Claimed)));
    let [mut one, mut two] = [0, 1].map(|index: usize| arenas[index].allocate::<u32>(8).unwrap());
    let outcome = first.open(View::in_place(&mut one[..]), 7, |windows| {
        second.open(View::in_place(&mut two[..]), 7, |_| windows.visit(0..1, |_| ()))
    });
    assert_eq!(outcome, Err(Shut::Differs { rank: 1 }));
}

/// A peer that died inside is a lease that never empties.
fn abandon(board: &mut Board, data: &mut [u8]) {
    board.open(View::in_place(data), 7, |windows| {
        assert!(windows.board.pane(0).lease.enter(), "the peer that dies");
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
fn a_buffer_that_a_peer_never_leaves_is_detached_and_its_neighbours_kept() {
    let arena = Arena::new(PANE_BYTES, 1 << 20).unwrap();
    // SAFETY: the only use of the bytes through this mapping is the late write below.
    let theirs = unsafe { Region::open(&descriptor(&arena)) }.unwrap();
    let mut board = board_among(std::slice::from_ref(&arena), 0).unwrap();
    let mut data = arena.allocate::<u8>(3 * 4096).unwrap();
    data.fill(5);
    let offset = arena.offset_of(&data).unwrap();
    abandon(&mut board, &mut data[100..9000]);
    let beside = data[..100].iter().chain(&data[9000..]);
    assert!(beside.clone().all(|byte| *byte == 5));
    let before = data[100..9000].to_vec();
    for late in (100..9000).step_by(100) {
        // SAFETY: inside the mapping.
        let late = unsafe { theirs.base().add(offset + late) };
        // SAFETY: nobody else has this mapping's byte, which is no longer the buffer's.
        unsafe { late.write(77) };
    }
    assert_eq!(data[100..9000], before, "a late write does not arrive");
    data[50] = 6;
    assert_eq!(data[50], 6, "what lies beside can still be written");
}

/// What is only read keeps its content, wherever the target lies, and is the owner's alone as well.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
fn an_input_that_a_peer_never_leaves_is_detached_with_its_content() {
    for (input, target) in
        [(10..9000, 9000..17990), (9000..17990, 10..9000), (0..8192, 8192..16384)]
    {
        let arena = Arena::new(PANE_BYTES, 1 << 20).unwrap();
        // SAFETY: the only use of the bytes through this mapping is the late read below.
        let theirs = unsafe { Region::open(&descriptor(&arena)) }.unwrap();
        let mut board = board_among(std::slice::from_ref(&arena), 0).unwrap();
        let mut data = arena.allocate::<u8>(18000).unwrap();
        data.fill(5);
        let offset = arena.offset_of(&data).unwrap();
        let [read, written] = data.get_disjoint_mut([input.clone(), target.clone()]).unwrap();
        let view = View { input: Some(read), target: written };
        board.open(view, 7, |windows| {
            assert!(windows.board.pane(0).lease.enter(), "the peer that dies");
        });
        assert!(data[input.clone()].iter().all(|byte| *byte == 5));
        data.fill(6);
        assert!(data.iter().all(|byte| *byte == 6), "it can be written");
        let whole_pages = input.start.next_multiple_of(4096)..input.end / 4096 * 4096;
        for late in whole_pages.step_by(100) {
            // SAFETY: inside the mapping.
            let late = unsafe { theirs.base().add(offset + late) };
            // SAFETY: the owner has a page of its own there, so nobody writes this one.
            assert_eq!(unsafe { late.read() }, 5, "a late read sees what was there");
        }
        drop(data);
        let later: Vec<_> = (0..200).map_while(|_| arena.allocate::<u8>(4096).ok()).collect();
        let is_zero = |block: &crate::Block<u8>| block.iter().all(|byte| *byte == 0);
        assert!(later.iter().all(is_zero), "new blocks are zero");
    }
}

/// Each rank brings one buffer and has another, or one for both.
#[test]
fn a_view_reads_the_input_and_writes_the_target() {
    let barrier = Barrier::new(RANKS);
    std::thread::scope(|scope| {
        for (me, mut board) in boards().into_iter().enumerate() {
            let barrier = &barrier;
            scope.spawn(move || {
                let input = [me as u32 + 1; 10];
                let mut target = [me as u32 + 1; 10];
                let view = View { input: (me != 1).then_some(&input[..]), target: &mut target };
                board.open(view, 7, |windows| {
                    barrier.wait();
                    let shard = windows.shard();
                    let visited = windows.visit(shard, |views| {
                        let sum: u32 = views.iter().map(|view| view.source()[0]).sum();
                        views.iter_mut().for_each(|view| view.target.fill(sum));
                    });
                    visited.unwrap();
                    barrier.wait();
                });
                assert_eq!((input, target), ([me as u32 + 1; 10], [6; 10]));
            });
        }
    });
}

/// The owner of the bytes beside a buffer goes on using them, on another thread.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
fn no_write_beside_a_buffer_is_lost_while_it_is_detached() {
    let arena = Arena::new(PANE_BYTES, 1 << 20).unwrap();
    let mut board = board_among(std::slice::from_ref(&arena), 0).unwrap();
    let mut data = arena.allocate::<u8>(4096).unwrap();
    let (beside, opened) = data.split_at_mut(64);
    let is_done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while is_done.load(Ordering::Acquire) == 0 {
                let next = value.wrapping_add(1);
                for byte in &mut *beside {
                    let was = std::mem::replace(std::hint::black_box(byte), next);
                    assert_eq!(was, value, "a write was lost");
                }
                value = next;
            }
        });
        abandon(&mut board, opened);
        is_done.store(1, Ordering::Release);
    });
}

/// Such a block would not be zero, and peers would not see what is in it.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
fn what_was_detached_is_in_no_later_block_and_no_later_window() {
    let arena = Arena::new(PANE_BYTES, 8 * 4096).unwrap();
    let mut board = board_among(std::slice::from_ref(&arena), 0).unwrap();
    let mut data = arena.allocate::<u8>(3 * 4096).unwrap();
    assert!(board.reaches(&data));
    abandon(&mut board, &mut data[4096..8192]);
    data.fill(9);
    assert!(!board.reaches(&data), "peers see another page in its middle");
    drop(data);
    let later: Vec<_> = (0..5).map(|_| arena.allocate::<u8>(4096).unwrap()).collect();
    assert!(later.iter().all(|block| block.iter().all(|byte| *byte == 0)), "new blocks are zero");
    assert!(later.iter().all(|block| !board.reaches(block)));
    let more = arena.allocate::<u8>(1);
    assert!(more.is_err(), "the abandoned range is not given away");
}
