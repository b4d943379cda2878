//! Code on a device: cubins, modules and functions.

pub(crate) mod nvrtc;
pub(crate) mod toolkit;

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction, CUmodule, CUresult};
use smallvec::SmallVec;

use crate::driver::context::{Context, symbol};
use crate::error::{Result, check};
use crate::memory::span::Span;
use crate::stream::Stream;

#[derive(Clone, Debug)]
pub struct Cubin {
    bytes: Arc<[u8]>,
}

impl Cubin {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into() }
    }
}

/// Code loaded in a context. Unloaded when the last of its functions is dropped.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    raw: CUmodule,
    context: Context,
}

#[derive(Clone, Debug)]
pub struct Function {
    raw: CUfunction,
    module: Arc<Inner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub blocks: u32,
    pub threads: u32,
}

/// One launch of a kernel over ranges of device memory.
#[derive(Clone, Copy, Debug)]
pub struct BufferLaunch<'a> {
    pub grid: Grid,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The first parameters: one 8-byte address each.
    pub buffers: &'a [Span],
    /// How far before its buffer each address is.
    pub before_bytes: u64,
    /// The last parameter, a struct by value.
    pub info: &'a [u8],
}

/// One launch of a kernel over addresses that are not those of whole ranges.
#[derive(Clone, Copy, Debug)]
pub struct AddressLaunch<'a> {
    pub grid: Grid,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The first parameters: one 8-byte address each.
    pub addresses: &'a [u64],
    /// The last parameter, a struct by value.
    pub info: &'a [u8],
}

/// Addresses of one launch without an allocation.
const FEW: usize = 16;

// SAFETY: a module handle is an opaque name for an object of the driver, whose functions may be called from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the functions that take it may be called from several threads at once.
unsafe impl Sync for Inner {}
// SAFETY: a function handle is an opaque name, valid while its module is, which it holds.
unsafe impl Send for Function {}
// SAFETY: as above; it may be launched from several threads at once.
unsafe impl Sync for Function {}

impl Module {
    /// Loads code. May wait for running kernels: load before streams begin to wait for other ranks.
    ///
    /// # Errors
    /// What the driver says, for example that the code is for another kind of device.
    pub fn load(context: &Context, cubin: &Cubin) -> Result<Self> {
        context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live pointer that the call writes; the image is what NVRTC made, an ELF
        // file that states its own size; the driver copies what it needs.
        check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut raw, cubin.bytes.as_ptr().cast())
        })?;
        let inner = Arc::new(Inner { raw, context: context.clone() });
        Ok(Self { inner })
    }

    /// The kernel with this name, declared `extern "C"`.
    ///
    /// # Errors
    /// The driver's error if the module lacks it.
    pub fn function(&self, name: &str) -> Result<Function> {
        self.inner.context.bind()?;
        let text = CString::new(name).expect("names of kernels have no NUL");
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live pointer that the call writes; the name ends in NUL; the module is valid until drop.
        check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut raw, self.inner.raw, text.as_ptr())
        })?;
        load_now(raw)?;
        Ok(Function { raw, module: Arc::clone(&self.inner) })
    }
}

/// Loads a kernel now rather than at its first launch, which would wait for all running kernels and so
/// for ranks that wait for this one. Drivers before CUDA 12.4 have no function for it; they load when
/// the module is loaded if CUDA_MODULE_LOADING=EAGER.
fn load_now(function: CUfunction) -> Result<()> {
    type Load = unsafe extern "C" fn(CUfunction) -> CUresult;
    // SAFETY: the driver's function of that name has this type since CUDA 12.4 (cuda.h).
    let Some(load) = (unsafe { symbol::<Load>("cuFuncLoad") }) else {
        return Ok(());
    };
    // SAFETY: the handle was given by cuModuleGetFunction just now; a context is current.
    let result = unsafe { load(function) };
    check("cuFuncLoad", result)
}

impl Function {
    /// Queues the kernel with one parameter, passed by value.
    ///
    /// # Safety
    /// The kernel must take exactly one parameter whose layout is that of `P`, and whatever addresses
    /// are in it, the kernel may only touch device memory that stays allocated until it has run.
    pub unsafe fn launch<P>(&self, stream: &Stream, grid: Grid, parameter: &P) -> Result<()> {
        let mut parameters = [ptr::from_ref(parameter).cast_mut().cast::<c_void>()];
        // SAFETY: the one parameter has the layout that the kernel declares and lives through the call;
        // what the kernel does is the promise of the caller.
        unsafe { self.launch_raw(stream, grid, 0, &mut parameters) }
    }

    /// Queues a kernel that takes one address per buffer and then one struct by value.
    ///
    /// # Safety
    /// The kernel must take exactly these parameters, the last of as many bytes as `info` has. From
    /// each address it may only touch the bytes of the buffer, which begin `before_bytes` behind it.
    pub unsafe fn launch_over(&self, stream: &Stream, launch: &BufferLaunch<'_>) -> Result<()> {
        let mut addresses: SmallVec<[u64; FEW]> = SmallVec::new();
        for span in launch.buffers {
            addresses.push(span.address() - launch.before_bytes);
        }
        let over = AddressLaunch {
            grid: launch.grid,
            shared_bytes: launch.shared_bytes,
            addresses: &addresses,
            info: launch.info,
        };
        // SAFETY: the parameters are those that the caller says the kernel declares, and of the memory
        // behind the addresses it touches the buffers alone.
        unsafe { self.launch_at(stream, &over, launch.buffers) }
    }

    /// Queues a kernel that takes some addresses and then one struct by value. `touched` is the memory that it touches.
    ///
    /// # Safety
    /// The kernel must take exactly these parameters, the last of as many bytes as `info` has, and may
    /// only touch bytes of `touched`.
    pub unsafe fn launch_at<'s>(
        &self,
        stream: &Stream,
        launch: &AddressLaunch<'_>,
        touched: impl IntoIterator<Item = &'s Span>,
    ) -> Result<()> {
        for span in touched {
            // Device memory that is freed only after this context is idle.
            span.used_by(stream.context());
        }
        let mut parameters: SmallVec<[*mut c_void; FEW + 1]> = launch
            .addresses
            .iter()
            .map(|address| ptr::from_ref(address).cast_mut().cast())
            .collect();
        parameters.push(launch.info.as_ptr().cast_mut().cast());
        // SAFETY: the parameters are those that the caller says the kernel declares, they live through
        // the call, and the memory that it touches stays allocated (`used_by`).
        unsafe { self.launch_raw(stream, launch.grid, launch.shared_bytes, &mut parameters) }
    }

    /// # Safety
    /// The kernel must take exactly these parameters, each a pointer to what is passed by value, and may
    /// only touch device memory that stays allocated until it has run.
    unsafe fn launch_raw(
        &self,
        stream: &Stream,
        grid: Grid,
        shared_bytes: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        assert!(grid.blocks > 0 && grid.threads > 0, "a kernel needs threads, got {grid:?}");
        assert!(
            stream.context().is_same(&self.module.context),
            "the stream and the kernel belong to different contexts"
        );
        stream.context().bind()?;
        // SAFETY: function and stream are valid handles of one context; the parameters are those of the
        // kernel, and the call copies them; what the kernel does is the promise of the caller.
        check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                self.raw,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                shared_bytes,
                stream.raw(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Unloading code that still runs is an error of its user; wait for it.
        let _ = self.context.synchronize();
        // SAFETY: the module was loaded once and is unloaded once; every function holds the Arc, so
        // none is left, and the context is idle.
        let _ = unsafe { sys::cuModuleUnload(self.raw) };
    }
}
