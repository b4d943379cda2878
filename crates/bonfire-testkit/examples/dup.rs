#![allow(missing_docs)]
use std::io::{ErrorKind, Read, Write};
use std::net::*;
use std::thread;
use std::time::Instant;
fn moved(r: std::io::Result<usize>) -> usize {
    match r {
        Ok(n) => n,
        Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
        Err(e) => panic!("{e}"),
    }
}
fn main() {
    let s = 16usize << 20;
    for buf in [0usize, 256 << 10, 512 << 10, 1 << 20, 2 << 20] {
        for call in [64usize << 10, 128 << 10, 256 << 10] {
            for win in [128usize << 10, 256 << 10, 512 << 10, 1 << 20] {
                let mut meds = vec![];
                for _ in 0..7 {
                    let l = TcpListener::bind("127.0.0.1:0").unwrap();
                    let a = TcpStream::connect(l.local_addr().unwrap()).unwrap();
                    let (b, _) = l.accept().unwrap();
                    let run = |mut st: TcpStream| {
                        st.set_nodelay(true).unwrap();
                        st.set_nonblocking(true).unwrap();
                        if buf > 0 {
                            rustix::net::sockopt::set_socket_send_buffer_size(&st, buf).unwrap();
                            rustix::net::sockopt::set_socket_recv_buffer_size(&st, buf).unwrap();
                        }
                        let nb = 3;
                        let out: Vec<Vec<u8>> = (0..nb).map(|_| vec![5u8; s]).collect();
                        let mut inc = vec![vec![1u8; s]; nb];
                        let mut t = vec![];
                        for i in 0..8 {
                            let st0 = Instant::now();
                            let (mut x, mut y) = (0, 0);
                            while x < s || y < s {
                                if x < s && x < y + win {
                                    x += moved(st.write(&out[i % nb][x..s.min(x + call)]));
                                }
                                if y < s {
                                    y += moved(st.read(&mut inc[i % nb][y..s.min(y + call)]));
                                }
                            }
                            t.push(st0.elapsed().as_secs_f64());
                        }
                        t.sort_by(f64::total_cmp);
                        t[t.len() / 2]
                    };
                    let r = thread::scope(|sc| {
                        sc.spawn(|| run(b));
                        run(a)
                    });
                    meds.push(s as f64 / r / 1e9);
                }
                meds.sort_by(f64::total_cmp);
                println!("buf {:>8} call {:>7} win {win:>8}: {:.2?}", buf, call, meds);
            }
        }
    }
}
