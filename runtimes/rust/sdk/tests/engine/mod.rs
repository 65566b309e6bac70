//! The engine's side of the protocol, for an operator that this program runs when it is started again, in its test `operator`.

use std::io::{Cursor, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs, process};

use arrow_array::{Array, ArrayRef, BinaryArray, Int32Array, RecordBatch, new_null_array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use prost::Message as _;

use pb::message::Kind;
use pb::part::Table;
use pb::{Data, Failure, Message, Part, Start};

#[path = "../../src/udo.operator.v1.rs"]
#[rustfmt::skip]
#[allow(dead_code)]
pub mod pb;

const REPLY: Duration = Duration::from_secs(60);
const HEADER_BYTES: usize = 1 << 20;

/// An operator in a process of its own, and the other end of its socket.
pub struct Engine {
    operator: Child,
    stream: UnixStream,
    folder: PathBuf,
    output: SchemaRef,
    id: u64,
    pub logs: Vec<String>,
}

/// The table's schema message, and its record batch message.
fn messages(batch: &RecordBatch) -> (Vec<u8>, Vec<u8>) {
    let mut writer = StreamWriter::try_new(Vec::new(), batch.schema_ref()).unwrap();
    let schema = writer.get_ref().clone();
    writer.write(batch).unwrap();
    (schema.clone(), writer.get_ref()[schema.len()..].to_vec())
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

impl Engine {
    /// Starts an operator whose events and answers have one column, `v`.
    pub fn start(role: &str, input: DataType, output: DataType) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let folder = env::temp_dir().join(format!("udo-served-{}-{}", process::id(), STARTED.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("socket")).unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "operator", "--nocapture"]).stdout(Stdio::null()).env("UDO_TEST_ROLE", role);
        let operator = command.env("UDO_OPERATOR_SOCKET", folder.join("socket")).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(REPLY)).unwrap();
        let mut engine = Self { operator, stream, folder, output: schema(output), id: 0, logs: vec![] };
        assert!(matches!(engine.receive().0.kind, Some(Kind::Hello(_))));
        let (input, _) = messages(&RecordBatch::new_empty(schema(input)));
        let (output, _) = messages(&RecordBatch::new_empty(engine.output.clone()));
        let keyed = Some(pb::Keyed { columns: vec!["v".to_string()], ..Default::default() });
        let ready = engine.ask(Kind::Start(Start { version: 1, input, output, keyed, ..Default::default() }), vec![]).0;
        assert!(matches!(ready.kind, Some(Kind::Ready(_))), "{ready:?}");
        engine
    }

    fn ask(&mut self, kind: Kind, tables: Vec<(Table, RecordBatch)>) -> (Message, Vec<u8>) {
        self.id += 1;
        let (mut parts, mut body) = (vec![], vec![]);
        for (table, batch) in tables {
            let bytes = messages(&batch).1;
            parts.push(Part { table: table as i32, bytes: bytes.len() as u64, shared_offset: None });
            body.extend(padded(bytes));
        }
        let head = Message { id: self.id, parts, kind: Some(kind) }.encode_to_vec();
        let sizes = [head.len(), body.len()].map(|n| (n as u32).to_le_bytes()).concat();
        self.stream.write_all(&[sizes, padded(head), body].concat()).unwrap();
        loop {
            let (reply, body) = self.receive();
            match reply.kind {
                Some(Kind::Log(line)) => self.logs.push(line.message),
                _ => return (reply, body),
            }
        }
    }

    fn receive(&mut self) -> (Message, Vec<u8>) {
        let mut size = [0; 4];
        let [head, body] = [(); 2].map(|_| {
            self.stream.read_exact(&mut size).unwrap();
            u32::from_le_bytes(size) as usize
        });
        assert!(head <= HEADER_BYTES, "a header of {head} bytes breaks the protocol");
        let mut both = vec![0; head.next_multiple_of(8) + body];
        self.stream.read_exact(&mut both).unwrap();
        (Message::decode(&both[..head]).unwrap(), both.split_off(head.next_multiple_of(8)))
    }

    /// The answer to this request, or the failure.
    pub fn replied(&mut self, kind: Kind, tables: Vec<(Table, RecordBatch)>) -> Result<RecordBatch, Failure> {
        let (reply, body) = self.ask(kind, tables);
        match reply.kind {
            Some(Kind::Answer(_)) => {}
            Some(Kind::Failure(failure)) => return Err(failure),
            other => panic!("neither an answer nor a failure: {other:?}"),
        }
        assert_eq!(reply.parts[0].table, Table::Rows as i32);
        let rows = body[..reply.parts[0].bytes as usize].to_vec();
        let schema = messages(&RecordBatch::new_empty(self.output.clone())).0;
        Ok(StreamReader::try_new(Cursor::new([schema, rows].concat()), None).unwrap().next().unwrap().unwrap())
    }

    /// The answer to these events, which are all of one key, or the failure.
    pub fn data(&mut self, events: ArrayRef) -> Result<RecordBatch, Failure> {
        let index = Arc::new(Int32Array::from(vec![0; events.len()])) as ArrayRef;
        let events = RecordBatch::try_new(schema(events.data_type().clone()), vec![events]).unwrap();
        let index = RecordBatch::try_from_iter([("key", index)]).unwrap();
        self.replied(Kind::Data(Data::default()), vec![(Table::Events, events), (Table::Index, index), (Table::Keys, one_key())])
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.operator.kill();
        let _ = self.operator.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn schema(kind: DataType) -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("v", kind, true)]))
}

/// The table KEYS of one key that has no state.
pub fn one_key() -> RecordBatch {
    let key: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\xa1k"[..]]));
    let (state, expires) = (new_null_array(&DataType::Binary, 1), new_null_array(&DataType::Int64, 1));
    RecordBatch::try_from_iter([("key", key), ("state", state), ("expires_us", expires)]).unwrap()
}
