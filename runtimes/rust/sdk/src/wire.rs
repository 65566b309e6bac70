//! The wire form (docs/operator-protocol.md): u32 header, u32 body, Protobuf header, padding to 8, Arrow record batch messages.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_ipc::reader::read_record_batch;
use arrow_ipc::root_as_message;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use arrow_schema::{Schema, SchemaRef};
use prost::Message as _;

use crate::pb::part::Table;
use crate::pb::{Message, Part};
use crate::shared::Shared;
use crate::{Error, Result};

// Larger pieces of a message are written and read in place, without buffering.
const BUFFER_BYTES: usize = 64 << 10;

/// The bytes of a request's tables.
pub(crate) type Tables = HashMap<i32, Buffer>;

/// A reply's table as a record batch message.
pub(crate) struct Encoded {
    pub(crate) table: Table,
    pub(crate) rows: usize,
    /// The size of all pieces.
    size: usize,
    pieces: Vec<Buffer>,
}

impl Encoded {
    /// Its bytes in a body, with padding.
    pub(crate) fn bytes(&self) -> usize {
        self.size + padding(self.size)
    }
}

pub(crate) struct Reader {
    stream: BufReader<UnixStream>,
    /// The memory that may hold tables of requests, once agreed on.
    pub(crate) shared: Option<Arc<Shared>>,
}

/// Any thread of an operator may log.
#[derive(Clone)]
pub(crate) struct Writer(Arc<Mutex<BufWriter<UnixStream>>>);

pub(crate) fn dial(path: &Path) -> io::Result<(Reader, Writer)> {
    let stream = UnixStream::connect(path)?;
    let writer = BufWriter::with_capacity(BUFFER_BYTES, stream.try_clone()?);
    Ok((Reader { stream: BufReader::with_capacity(BUFFER_BYTES, stream), shared: None }, Writer(Arc::new(Mutex::new(writer)))))
}

fn padding(n: usize) -> usize {
    n.wrapping_neg() & 7
}

fn broken(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

impl Reader {
    /// Reads one message and its tables; `None` when the engine is gone.
    pub(crate) fn receive(&mut self) -> io::Result<Option<(Message, Tables)>> {
        let mut prefix = [0; 8];
        match self.stream.read_exact(&mut prefix) {
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => return Ok(None),
            done => done?,
        }
        let [head_bytes, body_bytes] = [0usize, 4].map(|at| u32::from_le_bytes(prefix[at..at + 4].try_into().expect("4 bytes")) as usize);
        let mut head = vec![0; head_bytes + padding(head_bytes)];
        self.stream.read_exact(&mut head)?;
        let mut body = MutableBuffer::from_len_zeroed(body_bytes);
        self.stream.read_exact(body.as_slice_mut())?;
        let body = Buffer::from(body);
        let message = Message::decode(&head[..head_bytes]).map_err(io::Error::other)?;
        let (mut tables, mut at) = (Tables::new(), 0);
        for part in &message.parts {
            let bytes = usize::try_from(part.bytes).map_err(io::Error::other)?;
            if let Some(offset) = part.shared_offset {
                let shared = self.shared.as_ref().ok_or_else(|| broken("a table in shared memory, which was not agreed on"))?;
                tables.insert(part.table, shared.take(offset, bytes)?);
                continue;
            }
            if bytes > body_bytes.saturating_sub(at) {
                return Err(broken("a table lies outside of the body"));
            }
            tables.insert(part.table, body.slice_with_length(at, bytes));
            at += bytes + padding(bytes);
        }
        Ok(Some((message, tables)))
    }
}

impl Writer {
    /// Writes one message with its tables; large ones into the shared memory, if any.
    pub(crate) fn send(&self, mut message: Message, tables: &[Encoded], shared: Option<&Shared>) -> io::Result<()> {
        let (mut sent, mut body, mut used) = (vec![], 0, 0);
        for encoded in tables {
            let shared_offset = shared.and_then(|shared| shared.put(&encoded.pieces, encoded.size, &mut used));
            message.parts.push(Part { table: encoded.table as i32, bytes: encoded.size as u64, shared_offset });
            if shared_offset.is_none() {
                body += encoded.bytes();
                sent.push(encoded);
            }
        }
        let head = message.encode_to_vec();
        let size = |n: usize| u32::try_from(n).map(u32::to_le_bytes).map_err(|_| broken("an answer of more than 4 GiB"));
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(&size(head.len())?)?;
        out.write_all(&size(body)?)?;
        out.write_all(&head)?;
        out.write_all(&[0; 8][..padding(head.len())])?;
        for encoded in sent {
            for piece in &encoded.pieces {
                out.write_all(piece)?;
            }
            out.write_all(&[0; 8][..padding(encoded.size)])?;
        }
        out.flush()
    }
}

/// Makes record batches from messages that have no schema of their own.
pub(crate) struct Decoder {
    pub(crate) schema: SchemaRef,
}

impl Decoder {
    /// A decoder for the schema in an Arrow schema message. All columns may be null.
    pub(crate) fn of(message: &[u8]) -> Result<Self> {
        let schema = try_schema_from_ipc_buffer(message)?;
        let fields: Vec<_> = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        Ok(Self { schema: Arc::new(Schema::new(fields)) })
    }

    /// The table of this kind; an absent one is empty.
    pub(crate) fn batch(&self, tables: &Tables, table: Table) -> Result<RecordBatch> {
        let Some(data) = tables.get(&(table as i32)) else {
            return Ok(RecordBatch::new_empty(self.schema.clone()));
        };
        let garbled = || Error::new(format!("the table {} is not an Arrow record batch message", table.as_str_name()));
        // A continuation marker, the size of the metadata, the metadata, the body.
        let size = data.get(4..8).ok_or_else(garbled)?.try_into().map(u32::from_le_bytes)? as usize;
        let message = root_as_message(data.get(8..8 + size).ok_or_else(garbled)?).map_err(|_| garbled())?;
        let batch = message.header_as_record_batch().ok_or_else(garbled)?;
        Ok(read_record_batch(&data.slice(8 + size), batch, self.schema.clone(), &HashMap::new(), None, &message.version())?)
    }
}

/// Makes record batch messages, whose large buffers are not copied.
pub(crate) struct Encoder(StreamEncoder);

impl Encoder {
    pub(crate) fn of(schema: &SchemaRef) -> Result<Self> {
        let mut encoder = StreamEncoder::try_new_with_options(schema, IpcWriteOptions::try_new(8, false, arrow_ipc::MetadataVersion::V5)?)?;
        encoder.encode(&RecordBatch::new_empty(schema.clone()))?; // the schema comes before the first batch, and is not sent
        Ok(Self(encoder))
    }

    pub(crate) fn encode(&mut self, table: Table, batch: &RecordBatch) -> Result<Encoded> {
        let pieces = self.0.encode(batch)?;
        Ok(Encoded { table, rows: batch.num_rows(), size: pieces.iter().map(Buffer::len).sum(), pieces })
    }
}
