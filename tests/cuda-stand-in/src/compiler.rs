//! NVRTC: programs that the machine's C++ compiler makes shared objects of.

mod source;

use std::ffi::{CStr, c_char};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io, ptr, slice};

use source::translate;

use crate::driver::module::MAGIC;
use crate::settings::{Fault, Settings};
use crate::table::{Table, lock};

/// Has the values of `nvrtcResult`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Success = 0,
    InvalidInput = 3,
    InvalidProgram = 4,
    Compilation = 6,
}

static PROGRAMS: Table<Program> = Table::new(0xa000_0000);

struct Program {
    source: String,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    log: Vec<u8>,
    image: Vec<u8>,
}

/// Bits of the CPU's own arithmetic; kernels take addresses for other types than they were.
const OPTIONS: [&str; 10] = [
    "-O1",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wl,--as-needed",
];

/// Options of NVRTC that mean something to a C++ compiler. The architecture does not: kernels that know
/// instructions of one have another way for those without.
fn options(given: &[String]) -> Vec<String> {
    let mut options: Vec<String> = OPTIONS.map(str::to_owned).to_vec();
    options.push("-std=c++17".to_owned());
    let defines = given.iter().filter(|option| option.starts_with("-D"));
    options.extend(defines.cloned());
    if Settings::get().has(Fault::LostKernelWords) {
        options.push("-DSTAND_IN_LOSES_WORDS".to_owned());
    }
    options
}

/// The shared object, from the cache or the compiler; or what the compiler printed.
fn compile(source: &str, given: &[String]) -> Result<Vec<u8>, Vec<u8>> {
    let (text, options) = (translate(source), options(given));
    let settings = Settings::get();
    let mut hasher = DefaultHasher::new();
    (&text, &options, &settings.compiler).hash(&mut hasher);
    let kept = settings.cache.as_ref();
    let kept = kept.map(|folder| folder.join(format!("{:016x}.so", hasher.finish())));
    if let Some(image) = kept.as_ref().and_then(|path| fs::read(path).ok()) {
        return Ok(image);
    }
    let said = |error: io::Error| format!("{:?}: {error}", settings.compiler).into_bytes();
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = kept.as_ref().and_then(|path| path.parent());
    let folder = folder.map_or_else(env::temp_dir, Path::to_path_buf);
    fs::create_dir_all(&folder).map_err(said)?;
    let target = folder.join(format!("stand-in-{}-{number}.so", process::id()));
    let compiled = run(&text, &options, &target).map_err(said).and_then(|output| {
        if output.status.success() { fs::read(&target).map_err(said) } else { Err(output.stderr) }
    });
    match (&compiled, kept) {
        // Whole or not at all, for other processes that look for it.
        (Ok(_), Some(kept)) => fs::rename(&target, kept).map_err(said)?,
        _ => drop(fs::remove_file(&target)),
    }
    compiled
}

fn run(text: &str, options: &[String], target: &PathBuf) -> io::Result<process::Output> {
    let mut child = Command::new(&Settings::get().compiler)
        .args(options)
        .args(["-x", "c++", "-", "-lm", "-o"])
        .arg(target)
        // Kernels learn where this stand-in is; the compiler does not.
        .env_remove("LD_LIBRARY_PATH")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().expect("it is piped");
    // One that fails early stops reading; what it printed says why.
    let _ = input.write_all(text.as_bytes());
    drop(input);
    child.wait_with_output()
}

fn with(program: usize, use_it: impl FnOnce(&mut Made) -> Answer) -> Answer {
    match PROGRAMS.get(program) {
        Ok(program) => use_it(&mut lock(&program.made)),
        Err(_) => Answer::InvalidProgram,
    }
}

fn text_at(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's text ends in NUL.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

fn give<T>(place: Option<&mut T>, value: T) -> Answer {
    match place {
        Some(place) => *place = value,
        None => return Answer::InvalidInput,
    }
    Answer::Success
}

fn give_bytes(place: *mut u8, bytes: &[u8]) -> Answer {
    if place.is_null() {
        return Answer::InvalidInput;
    }
    // SAFETY: the caller's buffer has the size that an earlier call returned.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    Answer::Success
}

/// What NVRTC prints of a header that it does not find.
fn missing_header(source: &str) -> Option<String> {
    if !Settings::get().has(Fault::NoHeaders) {
        return None;
    }
    let header = source.split_once("#include <")?.1.split_once('>')?.0;
    Some(format!("default_program(1): catastrophic error: cannot open source file \"{header}\""))
}

// SAFETY: the names exported from this file are NVRTC's, and a process has one NVRTC.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcVersion(major: Option<&mut i32>, minor: Option<&mut i32>) -> Answer {
    give(major, 13);
    give(minor, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(answer: u32) -> *const c_char {
    match answer {
        0 => c"NVRTC_SUCCESS".as_ptr(),
        6 => c"NVRTC_ERROR_COMPILATION".as_ptr(),
        _ => c"NVRTC_ERROR_INVALID_INPUT".as_ptr(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCreateProgram(
    program: Option<&mut usize>,
    source: *const c_char,
    _name: *const c_char,
    headers: i32,
    _texts: *const *const c_char,
    _names: *const *const c_char,
) -> Answer {
    let Some(source) = text_at(source).filter(|_| headers == 0) else {
        return Answer::InvalidInput;
    };
    let made = Mutex::default();
    give(program, PROGRAMS.insert(Program { source, made }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcDestroyProgram(program: Option<&mut usize>) -> Answer {
    let Some(program) = program else {
        return Answer::InvalidProgram;
    };
    let removed = PROGRAMS.remove(std::mem::take(program));
    removed.map_or(Answer::InvalidProgram, |_| Answer::Success)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCompileProgram(
    program: usize,
    count: i32,
    given: *const *const c_char,
) -> Answer {
    let Ok(program) = PROGRAMS.get(program) else {
        return Answer::InvalidProgram;
    };
    let given = if given.is_null() || count <= 0 {
        &[]
    } else {
        // SAFETY: the caller's array has as many pointers as it says.
        unsafe { slice::from_raw_parts(given, count as usize) }
    };
    let given: Vec<String> = given.iter().filter_map(|text| text_at(*text)).collect();
    let compiled = match missing_header(&program.source) {
        Some(log) => Err(log.into_bytes()),
        None => compile(&program.source, &given),
    };
    let mut made = lock(&program.made);
    match compiled {
        Ok(object) => {
            let len = (object.len() as u64).to_le_bytes();
            made.image = [&MAGIC[..], &len, &object].concat();
            made.log = vec![0];
            Answer::Success
        }
        Err(mut log) => {
            log.retain(|byte| *byte != 0);
            log.push(0);
            made.log = log;
            Answer::Compilation
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLogSize(program: usize, len: Option<&mut usize>) -> Answer {
    with(program, |made| give(len, made.log.len()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLog(program: usize, log: *mut u8) -> Answer {
    with(program, |made| give_bytes(log, &made.log))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBINSize(program: usize, len: Option<&mut usize>) -> Answer {
    with(program, |made| give(len, made.image.len()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBIN(program: usize, image: *mut u8) -> Answer {
    with(program, |made| give_bytes(image, &made.image))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetPTXSize(program: usize, len: Option<&mut usize>) -> Answer {
    nvrtcGetCUBINSize(program, len)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetPTX(program: usize, image: *mut u8) -> Answer {
    nvrtcGetCUBIN(program, image)
}
