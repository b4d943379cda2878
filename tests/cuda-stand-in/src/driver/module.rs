//! Code: shared objects that [`compiler`](crate::compiler) made, and launches of their kernels.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::{ptr, slice};

use crate::calls::{tell, tell_of};
use crate::driver::context::Context;
use crate::driver::stream::stream_of;
use crate::settings::{Fault, Settings};
use crate::status::{Status, done, give};
use crate::table::{Table, lock};

/// In front of a shared object, with its size, since a driver gets only the start of an image.
pub(crate) const MAGIC: [u8; 24] = *b"code of the CUDA standin";

/// Shared memory of a block, of either kind.
pub(crate) const SHARED_BYTES_MAX: u32 = 227 << 10;

const THREADS_MAX: u32 = 1024;

/// Of one thread of a kernel that waits for others of its block.
const STACK_BYTES: usize = 128 << 10;

static MODULES: Table<Module> = Table::new(0x9000_0000);
static FUNCTIONS: Table<Function> = Table::new(0xf000_0000);

/// A shared object in this process: never unloaded, since queued work may still be in it, and the same for all
/// modules of the same code, which has no variables of its own.
struct Module {
    library: usize,
}

struct Function {
    name: String,
    entry: &'static Entry,
}

/// As prelude.hpp declares it, field by field.
#[repr(C)]
struct Entry {
    /// How many parameters it has.
    count: u32,
    /// Whether threads of a block wait for each other.
    waits: u32,
    /// The bytes of each parameter.
    sizes: *const u32,
    run: extern "C" fn(*const *const c_void, &Grid, *mut u8, usize),
}

// SAFETY: an entry is constant data of a shared object that is never unloaded.
unsafe impl Sync for Entry {}
// SAFETY: as above.
unsafe impl Send for Entry {}

/// As prelude.hpp declares it, field by field.
#[repr(C)]
#[derive(Clone, Copy)]
struct Grid {
    blocks: [u32; 3],
    threads: [u32; 3],
}

/// The bytes of an image, without what is in front.
///
/// # Safety
/// There must be an image of this driver, or at least as many bytes as in front of one.
unsafe fn image_at(address: *const u8) -> Result<&'static [u8], Status> {
    if address.is_null() {
        return Err(Status::InvalidValue);
    }
    // SAFETY: the caller vouches for that many bytes.
    let front = unsafe { slice::from_raw_parts(address, MAGIC.len() + 8) };
    let (magic, len) = front.split_at(MAGIC.len());
    let len = <[u8; 8]>::try_from(len).map(u64::from_le_bytes);
    let Ok(len) = len else {
        return Err(Status::InvalidImage);
    };
    if magic != MAGIC {
        return Err(Status::InvalidImage);
    }
    // SAFETY: the front is in the image.
    let start = unsafe { address.add(front.len()) };
    // SAFETY: an image has as many bytes as it says.
    Ok(unsafe { slice::from_raw_parts(start, len as usize) })
}

/// Loads a shared object, once for all images with the same bytes.
fn load(image: &[u8]) -> Result<usize, Status> {
    static LOADED: Mutex<Option<HashMap<u64, usize>>> = Mutex::new(None);
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    let mut loaded = lock(&LOADED);
    let loaded = loaded.get_or_insert_default();
    let key = hasher.finish();
    if let Some(library) = loaded.get(&key) {
        return Ok(*library);
    }
    // SAFETY: the name ends in NUL and lives through the call.
    let raw = unsafe { libc::memfd_create(c"stand-in code".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(Status::OutOfMemory);
    }
    // SAFETY: the descriptor is new and nobody else's.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
    file.write_all(image).map_err(|_| Status::OutOfMemory)?;
    // The loader takes two libraries with one path for the same, and numbers of files come again: each path
    // is another.
    let path = format!("/proc/self/fd/{}{}", "./".repeat(loaded.len()), file.as_raw_fd());
    let path = CString::new(path).map_err(|_| Status::InvalidValue)?;
    // SAFETY: the path ends in NUL; the library is one of ours, and its initialisers do nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(Status::InvalidImage);
    }
    loaded.insert(key, library as usize);
    Ok(library as usize)
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(module: Option<&mut usize>, image: *const u8) -> Status {
    tell("cuModuleLoadData");
    done(Context::current().and_then(|context| {
        if Settings::get().has(Fault::LoadWaits) {
            context.synchronize();
        }
        // SAFETY: the caller has an image there, as the driver asks of it.
        let library = load(unsafe { image_at(image) }?)?;
        give(module, MODULES.insert(Module { library }))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: usize) -> Status {
    done(MODULES.remove(module).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(
    function: Option<&mut usize>,
    module: usize,
    name: *const c_char,
) -> Status {
    done(MODULES.get(module).and_then(|module| {
        if name.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller's name ends in NUL.
        let name = unsafe { CStr::from_ptr(name) };
        let symbol = [b"stand_in_", name.to_bytes_with_nul()].concat();
        let library = module.library as *mut c_void;
        // SAFETY: the library is loaded for ever; the name ends in NUL.
        let entry = unsafe { libc::dlsym(library, symbol.as_ptr().cast()) };
        // SAFETY: that symbol is an `Entry` in every library that the compiler makes.
        let entry = unsafe { entry.cast::<Entry>().as_ref() };
        let entry = entry.ok_or(Status::NotFound)?;
        let name = name.to_string_lossy().into_owned();
        give(function, FUNCTIONS.insert(Function { name, entry }))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncLoad(function: usize) -> Status {
    done(FUNCTIONS.get(function).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: usize, _attribute: u32, _value: i32) -> Status {
    done(FUNCTIONS.get(function).map(|_| ()))
}

/// The parameters of one launch, copied when it is queued.
struct Arguments(Vec<Vec<u128>>);

impl Arguments {
    /// # Safety
    /// `parameters` must be an array of as many pointers as the kernel has parameters, each to one.
    unsafe fn copy(entry: &Entry, parameters: *const *const u8) -> Self {
        let count = entry.count as usize;
        if count == 0 {
            return Self(Vec::new());
        }
        // SAFETY: an entry has as many sizes as parameters.
        let sizes = unsafe { slice::from_raw_parts(entry.sizes, count) };
        // SAFETY: the caller vouches for the array.
        let sources = unsafe { slice::from_raw_parts(parameters, count) };
        let copy = |(size, source): (&u32, &*const u8)| {
            let size = *size as usize;
            let mut words = vec![0_u128; size.div_ceil(16)];
            // SAFETY: the caller vouches for the parameter; the words are new and hold as many bytes.
            unsafe { ptr::copy_nonoverlapping(*source, words.as_mut_ptr().cast(), size) };
            words
        };
        Self(sizes.iter().zip(sources).map(copy).collect())
    }

    fn run(&self, entry: &Entry, grid: &Grid) {
        let pointers: Vec<*const c_void> =
            self.0.iter().map(|words| words.as_ptr().cast()).collect();
        let stacks = Stacks::of(if entry.waits == 0 {
            0
        } else {
            grid.threads.iter().product::<u32>() as usize
        });
        (entry.run)(pointers.as_ptr(), grid, stacks.base, STACK_BYTES);
    }
}

/// Stacks of the threads of a block, which are never used at once.
struct Stacks {
    base: *mut u8,
    len: usize,
}

impl Stacks {
    fn of(threads: usize) -> Self {
        let len = threads * STACK_BYTES;
        if len == 0 {
            return Self { base: ptr::null_mut(), len };
        }
        // SAFETY: the system chooses an address where nothing is.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(base != libc::MAP_FAILED, "no memory for {threads} stacks");
        Self { base: base.cast(), len }
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the range was mapped in `of`, and the threads that used it are over.
            unsafe { libc::munmap(self.base.cast(), self.len) };
        }
    }
}

fn product(of: [u32; 3]) -> u64 {
    of.iter().map(|part| u64::from(*part)).product()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: usize,
    blocks_x: u32,
    blocks_y: u32,
    blocks_z: u32,
    threads_x: u32,
    threads_y: u32,
    threads_z: u32,
    shared_bytes: u32,
    stream: usize,
    parameters: *const *const u8,
    extra: *const c_void,
) -> Status {
    done(FUNCTIONS.get(function).and_then(|function| {
        tell_of("cuLaunchKernel", &function.name);
        let stream = stream_of(stream)?;
        let grid = Grid {
            blocks: [blocks_x, blocks_y, blocks_z],
            threads: [threads_x, threads_y, threads_z],
        };
        let threads = product(grid.threads);
        let fits = threads <= THREADS_MAX.into() && shared_bytes <= SHARED_BYTES_MAX;
        let is_some = threads > 0 && product(grid.blocks) > 0;
        let entry = function.entry;
        let is_given = extra.is_null() && (entry.count == 0 || !parameters.is_null());
        if !(fits && is_some && is_given) {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller's array is that of the kernel's parameters, as the driver asks of it.
        let arguments = unsafe { Arguments::copy(entry, parameters) };
        stream.queue.push(move || arguments.run(entry, &grid));
        Ok(())
    }))
}
