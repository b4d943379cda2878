#![allow(missing_docs)]
use bonfire_collective::*;
use bonfire_testkit::{connected, limits, local};
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let n: u32 = a[0].parse().unwrap();
    let tr = a[1].clone();
    let sizes: Vec<usize> = a[2].split(',').map(|s| s.parse().unwrap()).collect();
    let limit = a.get(3).is_some();
    for s in sizes {
        let lim = if limit {
            Some(if tr == "tcp" {
                limits::loopback_duplex(s, limits::Rotation::default())
            } else {
                limits::in_place_sum(s, limits::Rotation::default())
            })
        } else {
            None
        };
        let body = |g: ProcessGroup| {
            let nb = (192usize << 20).div_ceil(s).clamp(2, 64);
            let mut bufs: Vec<Vec<f32>> = (0..nb)
                .map(|i| {
                    (0..(s / 4).max(1))
                        .map(|j| ((i * 31 + j * 7) % 97) as f32)
                        .collect()
                })
                .collect();
            let iters = ((512usize << 20) / s).clamp(10, 3000);
            for b in bufs.iter_mut() {
                g.all_reduce(b, ReduceOp::Max).unwrap();
            }
            let mut t = Vec::new();
            for i in 0..iters {
                let b = i % nb;
                if s >= 1 << 20 {
                    g.barrier().unwrap();
                }
                let st = Instant::now();
                g.all_reduce(&mut bufs[b], ReduceOp::Sum).unwrap();
                t.push(st.elapsed().as_secs_f64());
                if i % nb == nb - 1 {
                    for x in bufs.iter_mut() {
                        for y in x.iter_mut() {
                            *y = 1.0;
                        }
                    }
                }
            }
            t.sort_by(f64::total_cmp);
            (t[0], t[t.len() / 2], t.iter().sum::<f64>() / t.len() as f64)
        };
        let mut o = GroupOptions::default();
        if let Ok(c) = std::env::var("CHUNK") {
            o.chunk_bytes = c.parse().unwrap();
        }
        let r = if tr == "local" {
            local(n, o, body)
        } else {
            o.transport = Some(tr.parse().unwrap());
            connected(n, o, body)
        };
        let (b, m, avg) = r[0];
        print!(
            "{tr} n={n} {s:>9} B best {:8.1} us {:6.2} GB/s  med {:8.1} us {:6.2} GB/s mean {:8.1}",
            b * 1e6,
            s as f64 / b / 1e9,
            m * 1e6,
            s as f64 / m / 1e9,
            avg * 1e6
        );
        if let Some(l) = lim {
            print!(
                "  limit best {:.2} med {:.2} ratio best {:.2} med {:.2}",
                l.best,
                l.median,
                s as f64 / b / 1e9 / l.best,
                s as f64 / m / 1e9 / l.median
            );
        }
        println!();
    }
}
