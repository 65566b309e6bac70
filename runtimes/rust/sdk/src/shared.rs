//! The memory offered by the engine in `UDO_OPERATOR_SHARED`: its first half holds tables of requests, the second those of replies.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::{env, ptr, slice};

use arrow_buffer::Buffer;

/// Tables smaller than this cost less in the message itself.
const LEAST_BYTES: usize = 32 << 10;

pub(crate) struct Shared {
    memory: *mut u8,
    half: usize,
}

// SAFETY: the engine writes the first half only while this process waits for a request, and nobody here writes it; only the thread that
// answers requests writes the second.
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

impl Shared {
    /// The memory named in the environment; `None` if there is none, or it cannot be mapped.
    pub(crate) fn given() -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open(env::var_os("UDO_OPERATOR_SHARED")?).ok()?;
        let size = usize::try_from(file.metadata().ok()?.len()).ok().filter(|size| *size > 0)?;
        // SAFETY: a new mapping of the whole file, whose size is sealed. It outlives the file.
        let memory = unsafe {
            libc::mmap(ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        (memory != libc::MAP_FAILED).then(|| Self { memory: memory.cast(), half: size / 2 })
    }

    /// Copies a table of a request: the engine overwrites it with the next one.
    pub(crate) fn take(&self, offset: u64, bytes: usize) -> io::Result<Buffer> {
        let at = usize::try_from(offset).ok().filter(|at| *at <= self.half && bytes <= self.half - at);
        let at = at.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a table lies outside of the shared memory"))?;
        // SAFETY: these bytes are in the first half.
        Ok(Buffer::from(unsafe { slice::from_raw_parts(self.memory.add(at), bytes) }))
    }

    /// Writes a table at `used` bytes from the start of its half; returns its offset. `None` if it is too small, or there is no room.
    pub(crate) fn put(&self, pieces: &[Buffer], bytes: usize, used: &mut usize) -> Option<u64> {
        if bytes < LEAST_BYTES || bytes > self.half.saturating_sub(*used) {
            return None;
        }
        let start = self.half + *used;
        let mut at = start;
        for piece in pieces {
            // SAFETY: all pieces together fit into the second half, and no piece is there already.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), self.memory.add(at), piece.len()) };
            at += piece.len();
        }
        *used += bytes.next_multiple_of(64);
        Some(start as u64)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and nobody has a reference into it.
        unsafe { libc::munmap(self.memory.cast(), 2 * self.half) };
    }
}
