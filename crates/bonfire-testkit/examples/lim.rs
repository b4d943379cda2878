#![allow(missing_docs)]
use bonfire_testkit::limits::*;
fn main() {
    for _ in 0..3 {
        for s in [64usize << 10, 1 << 20, 16 << 20, 64 << 20] {
            print!("{s} {:.2?}  ", loopback_duplex(s, Rotation::default()));
        }
        println!();
    }
}
