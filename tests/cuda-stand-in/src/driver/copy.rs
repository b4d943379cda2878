//! Copies, in the order of streams.

use std::ptr;
use std::thread;
use std::time::Duration;

use crate::calls::{tell, tell_of};
use crate::driver::memory::{Kind, find};
use crate::driver::stream::{Stream, stream_of};
use crate::settings::{Fault, Settings};
use crate::status::{Status, done};

#[derive(Clone, Copy)]
struct Copy {
    target: u64,
    source: u64,
    len: usize,
}

/// What both ends are: memory that the driver knows, or memory of the program.
type Ends = (Option<Kind>, Option<Kind>);

impl Copy {
    fn ends(self) -> Ends {
        let kind = |address| find(address, self.len).map(|(_, kind)| kind);
        (kind(self.target), kind(self.source))
    }

    fn run(self, ends: Ends) {
        if let Some((from, to)) = between(ends) {
            let settings = Settings::get();
            let apart = from.abs_diff(to);
            let is_far = apart != 1 && apart + 1 != settings.devices;
            if settings.has(Fault::FarPeersSlow) && is_far && from != to {
                thread::sleep(Duration::from_millis((self.len >> 16) as u64 + 1));
            }
        }
        // SAFETY: both ranges were found, or are the program's, which keeps them until the copy is done as the
        // driver demands. They may overlap.
        unsafe {
            ptr::copy(self.source as *const u8, self.target as *mut u8, self.len);
        };
        if between(ends).is_some() && Settings::get().has(Fault::CorruptPeer) {
            let middle = (self.target + self.len as u64 / 2) as *mut u8;
            // SAFETY: the byte is one of those that were written just now.
            let byte = unsafe { middle.read() };
            // SAFETY: as above.
            unsafe { middle.write(byte ^ 0x10) };
        }
    }
}

/// The devices that a copy goes between, where it leaves one device or process.
fn between(ends: Ends) -> Option<(usize, usize)> {
    use Kind::{Device, Imported, Pool};
    match ends {
        (
            Some(Device(to) | Pool(to) | Imported(to)),
            Some(Device(from) | Pool(from) | Imported(from)),
        ) => {
            let is_import = |kind| matches!(kind, Some(Imported(_)));
            let leaves = from != to || is_import(ends.0) || is_import(ends.1);
            leaves.then_some((from, to))
        }
        _ => None,
    }
}

fn is_device(kind: Option<Kind>) -> bool {
    matches!(kind, Some(Kind::Device(_) | Kind::Pool(_) | Kind::Imported(_)))
}

enum Way {
    Any,
    ToDevice,
    ToHost,
    OnDevices,
}

fn queue(stream: &Stream, copy: Copy, way: Way) -> Result<(), Status> {
    if copy.len == 0 {
        return Ok(());
    }
    let ends = copy.ends();
    let fits = match way {
        Way::Any => true,
        Way::ToDevice => is_device(ends.0),
        Way::ToHost => is_device(ends.1),
        Way::OnDevices => is_device(ends.0) && is_device(ends.1),
    };
    if !fits {
        return Err(Status::InvalidValue);
    }
    if ends.1.is_none() {
        // Memory of the program that nothing locks is read before the call returns.
        let source = copy.source as *const u8;
        // SAFETY: the caller's memory has as many bytes, as the driver asks of it.
        let bytes = unsafe { std::slice::from_raw_parts(source, copy.len) }.to_vec();
        stream.queue.push(move || {
            let source = bytes.as_ptr() as u64;
            Copy { source, ..copy }.run(ends);
        });
    } else {
        stream.queue.push(move || copy.run(ends));
    }
    if ends.0.is_none() {
        // Memory of the program that nothing locks is written before the call returns.
        stream.queue.wait();
    }
    Ok(())
}

fn copy_async(target: u64, source: u64, len: usize, way: Way, stream: usize) -> Status {
    let copy = Copy { target, source, len };
    done(stream_of(stream).and_then(|stream| queue(&stream, copy, way)))
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(target: u64, source: u64, len: usize, stream: usize) -> Status {
    tell("cuMemcpyAsync");
    copy_async(target, source, len, Way::Any, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    target: u64,
    source: u64,
    len: usize,
    stream: usize,
) -> Status {
    tell("cuMemcpyHtoDAsync_v2");
    copy_async(target, source, len, Way::ToDevice, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    target: u64,
    source: u64,
    len: usize,
    stream: usize,
) -> Status {
    tell_of("cuMemcpyDtoHAsync_v2", &format!("{len} bytes"));
    copy_async(target, source, len, Way::ToHost, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(
    target: u64,
    source: u64,
    len: usize,
    stream: usize,
) -> Status {
    tell("cuMemcpyDtoDAsync_v2");
    copy_async(target, source, len, Way::OnDevices, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(target: u64, byte: u8, len: usize, stream: usize) -> Status {
    tell("cuMemsetD8Async");
    done(stream_of(stream).and_then(|stream| {
        if len == 0 {
            return Ok(());
        }
        find(target, len).ok_or(Status::InvalidValue)?;
        stream.queue.push(move || {
            // SAFETY: the range was found, and stays until the stream is done.
            unsafe { ptr::write_bytes(target as *mut u8, byte, len) };
        });
        Ok(())
    }))
}

/// Has the layout of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2d {
    source: End2d,
    target: End2d,
    width: usize,
    height: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct End2d {
    x: usize,
    y: usize,
    /// 1 for the host, 2 for a device, 4 for either.
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

impl End2d {
    fn row(&self, row: usize) -> Result<u64, Status> {
        let base = match self.kind {
            1 => self.host,
            2 | 4 => self.device,
            _ => return Err(Status::NotSupported),
        };
        Ok(base + ((self.y + row) * self.pitch + self.x) as u64)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpy2DAsync_v2(copy: Option<&Copy2d>, stream: usize) -> Status {
    tell("cuMemcpy2DAsync_v2");
    done(copy.ok_or(Status::InvalidValue).and_then(|copy| {
        let stream = stream_of(stream)?;
        (0..copy.height).try_for_each(|row| {
            let one = Copy {
                target: copy.target.row(row)?,
                source: copy.source.row(row)?,
                len: copy.width,
            };
            queue(&stream, one, Way::Any)
        })
    }))
}
