//! Memory that this process has freed.

/// Gives the pages that an allocator keeps of freed memory back to the kernel, so that what is resident is in use. It does
/// so with glibc's allocator, and nothing with others.
pub fn release_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number, may run beside other threads (malloc_trim(3): MT-Safe), and touches free chunks
    // alone, under the locks of their arenas.
    unsafe {
        libc::malloc_trim(0)
    };
}
