#!lua name=udo
-- The deciding steps on a slot's log and state, each one atomic. Keys are described in keys.py; KEYS[1] is the slot's prefix. This file has
-- more than 400 lines, since a server loads a function library as one text. Large payload never enters Lua: the caller's MULTI appends it
-- first and calls the deciding function after it in the same transaction; a refusal removes the payload again before anybody can see it.
-- Small payload is an argument instead: one command instead of four. Decision and write are one step on the server, so a fence holds at
-- any pipelining depth. Each redis.call costs about 2 µs.

local function num(key, default) return tonumber(redis.call('GET', key) or default) end

local function num_of(key, field) return tonumber(redis.call('HGET', key, field) or 0) end

-- nil if the key is of another type: for keys that others than the owner may write too, who must not be able to stop the owner.
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return nil end
  return reply
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Once per arming: arming a bell empties it, ringing disarms it in the same step.
local function ring_bell(bell)
  redis.call('LPUSH', bell, 1)
  redis.call('PEXPIRE', bell, 60000)
end

-- Wake the readers parked in `set` and forget them; each re-reads and parks again by itself.
local function ring(p, set)
  for _, reader in ipairs(redis.call('SPOP', p .. set, 1000)) do ring_bell(p .. 'bell:' .. reader) end
end

local function ring_lane(p, lane)
  if redis.call('HDEL', p .. 'lane:' .. lane, 'parked') == 1 then ring_bell(p .. 'bell:' .. lane) end
end

-- Remove frames up to `seq` from the log that begins at `base`, but none at or after a live pin while the log is within
-- half of `bound` bytes; beyond that the pin that holds most is lost, but no other. Returns the new base.
local function trim(p, seq, base, bound)
  if redis.call('EXISTS', p .. 'pins') == 1 then
    local pins, now = try('HGETALL', p .. 'pins') or {}, now_ms()
    local over = num(p .. 'bytes', 0) > bound / 2 -- the other half is for waiting frames: a pin never stops producers
    local live, first = {}, seq + 1
    for i = 1, #pins, 2 do
      local at, expiry = pins[i + 1]:match('^(%d+):(%d+)$')
      if not expiry or tonumber(expiry) <= now then
        redis.call('HDEL', p .. 'pins', pins[i])
      else
        live[pins[i]] = tonumber(at)
        first = math.min(first, tonumber(at))
      end
    end
    for name, at in pairs(live) do
      if over and at == first then
        redis.call('HDEL', p .. 'pins', name)
      elseif at <= seq then
        seq = at - 1
      end
    end
  end
  local count = seq - base + 1
  if count <= 0 then return base end
  local freed = 0
  for _, entry in ipairs(redis.call('LPOP', p .. 'sizes', count)) do
    freed = freed + tonumber(entry:match('^%d+') or 0)
  end
  redis.call('LTRIM', p .. 'in', count, -1)
  redis.call('DECRBY', p .. 'bytes', freed)
  redis.call('SET', p .. 'base', seq + 1)
  return seq + 1
end

-- Accept or refuse the frame just appended to `in`, or given as the last argument.
-- ARGV: lane, n, prev, route, size, bound, ttl_ms, part, label, optionally the frame.
-- part and label ("run:epoch:attempt", zero padded) are empty for stateless and engine-free lanes.
local function accept(keys, a)
  local p = keys[1]
  local lane, n, prev, size = a[1], tonumber(a[2]), tonumber(a[3]), tonumber(a[5])
  local key = p .. 'lane:' .. lane
  local function refuse(status, ...)
    if not a[10] then redis.call('LTRIM', p .. 'in', 0, -2) end
    return {status, ...}
  end
  local last = tonumber(redis.call('HGET', key, 'last') or -1)
  if last < 0 then return refuse('EXPIRED') end
  if n <= last then return refuse('DUPLICATE', last) end
  if prev ~= last then return refuse('GAP', last) end
  local route = redis.call('HGET', p .. 'route', 'v') or '0'
  if route ~= a[4] then return refuse('MOVED', redis.call('HGET', p .. 'route', 'table')) end
  if a[8] ~= '' then
    local newest = redis.call('GET', p .. 'newest:' .. a[8])
    if newest and newest > a[9] then return refuse('STALE', newest) end
    -- There is a key for each partition of each session, and each batch job is a session: it must not live as long as a lane may.
    redis.call('SET', p .. 'newest:' .. a[8], a[9], 'PX', math.min(tonumber(a[7]), 600000))
  end
  local bytes = num(p .. 'bytes', 0)
  if bytes > 0 and bytes + size > tonumber(a[6]) then return refuse('BUSY', tostring(bytes)) end
  if a[10] then redis.call('RPUSH', p .. 'in', a[10]) end
  redis.call('RPUSH', p .. 'sizes', size .. ' ' .. n .. ' ' .. lane)
  redis.call('INCRBY', p .. 'bytes', size)
  redis.call('HSET', key, 'last', n)
  redis.call('PEXPIRE', key, a[7])
  ring(p, 'parked')
  return {'ACCEPTED', n}
end

-- A mirror compares answers: keep a copy of them for it. Beyond the bound the mirror loses these frames: it never delays
-- serving. Copies expire if the mirror does not take them.
local function keep_for_mirror(p, a, inline, mirror, bound)
  local copies, bytes = p .. 'served:' .. mirror, p .. 'servedbytes:' .. mirror
  local kept, size, i = {''}, 0, 8
  if num(bytes, 0) >= tonumber(bound) then return end
  while i < #a do
    local count = tonumber(a[i + 1])
    local frames = inline and {unpack(a, i + 2, i + 1 + count)} or redis.call('LRANGE', p .. 'out:' .. a[i], -count, -1)
    for _, frame in ipairs(frames) do
      kept[#kept + 1] = frame
      size = size + #frame
    end
    i = i + 2 + (inline and count or 0)
  end
  kept[1] = a[2] .. ' ' .. a[3] .. ' ' .. (#kept - 1) .. ' ' .. size
  redis.call('RPUSH', copies, unpack(kept))
  redis.call('INCRBY', bytes, size)
  redis.call('PEXPIRE', copies, 60000)
  redis.call('PEXPIRE', bytes, 60000)
end

-- `mirrors` is `instance bound until_ms` for each, one after the other.
local function keep_for_mirrors(p, a, inline, mirrors)
  local now = now_ms()
  for mirror, bound, till in mirrors:gmatch('(%S+) (%d+) (%d+)') do
    if tonumber(till) > now then pcall(keep_for_mirror, p, a, inline, mirror, bound) end
  end
end

-- Begin, renew or end a comparison; called by the node manager. ARGV: instance, bound, lease_ms (0 ends it). Returns whether the
-- instance was comparing.
local function mirror(keys, a)
  local p, now, found, others = keys[1], now_ms(), 0, {}
  local last = now + tonumber(a[3])
  for name, bound, till in (redis.call('GET', p .. 'mirrors') or ''):gmatch('(%S+) (%d+) (%d+)') do
    if name == a[1] then
      found = tonumber(till) > now and 1 or 0
    elseif tonumber(till) > now then
      others[#others + 1] = name .. ' ' .. bound .. ' ' .. till
      last = math.max(last, tonumber(till))
    end
  end
  if a[3] ~= '0' then others[#others + 1] = a[1] .. ' ' .. a[2] .. ' ' .. string.format('%.0f', now + tonumber(a[3])) end
  if #others == 0 then
    redis.call('DEL', p .. 'mirrors')
  else
    redis.call('SET', p .. 'mirrors', table.concat(others, ' '), 'PX', string.format('%.0f', last - now))
  end
  return found
end

-- Accept or refuse the answers just appended to the `out` lists, or given as arguments.
-- ARGV: token, first seq, last seq, trim (1: stateless, answered frames leave the log at once; failed: they stay, and a
-- replay skips their lanes), bound, ttl_ms, inline (1: the frames follow their lane), then lane, count [, frames]
-- for each lane.
local function emit(keys, a)
  local p, inline = keys[1], a[7] == '1'
  local first, last = tonumber(a[2]), tonumber(a[3])
  local function refuse(status, value)
    if not inline then
      for i = 8, #a, 2 do redis.call('LTRIM', p .. 'out:' .. a[i], 0, -1 - tonumber(a[i + 1])) end
    end
    return {status, value}
  end
  local is = redis.call('MGET', p .. 'owner', p .. 'emitted', p .. 'base', p .. 'mirrors')
  local owner, emitted, base = is[1] or '0', tonumber(is[2] or 0), tonumber(is[3] or 1)
  if owner ~= a[1] then return refuse('FENCED', tonumber(owner)) end
  if first <= emitted then return refuse('DUPLICATE', emitted) end
  if first ~= emitted + 1 then return refuse('GAP', emitted) end
  redis.call('SET', p .. 'emitted', last)
  if is[4] then pcall(keep_for_mirrors, p, a, inline, is[4]) end -- a failure to copy for mirrors does not stop the answer
  local i = 8
  while i < #a do
    local lane, count = a[i], tonumber(a[i + 1])
    local out, key = p .. 'out:' .. lane, p .. 'lane:' .. lane
    local collected = redis.call('PEXPIRE', key, a[6]) == 1
    if collected then
      if inline then redis.call('RPUSH', out, unpack(a, i + 2, i + 1 + count)) end
      redis.call('PEXPIRE', out, a[6])
      ring_lane(p, lane)
    elseif not inline then
      redis.call('DEL', out) -- the lane is closed: its answers will not be collected
    end
    if a[4] == 'failed' then redis.call('SADD', p .. 'failed', lane) end
    i = i + 2 + (inline and count or 0)
  end
  if a[4] == '1' then trim(p, last, base, tonumber(a[5])) end
  if a[4] == 'failed' then redis.call('PEXPIRE', p .. 'failed', a[6]) end
  return {'EMITTED', last}
end

-- Trim frames that durable state covers. ARGV: token, seq, bound.
local function trim_covered(keys, a)
  local p, seq = keys[1], tonumber(a[2])
  local owner = redis.call('GET', p .. 'owner') or '0'
  if owner ~= a[1] then return {'FENCED', tonumber(owner)} end
  if seq > num(p .. 'emitted', 0) then return {'AHEAD', num(p .. 'emitted', 0)} end
  return {'TRIMMED', trim(p, seq, num(p .. 'base', 1), tonumber(a[3]))}
end

-- Append a frame of the node manager; returns its sequence number. `route`, which only the node manager writes, keeps the last such frame:
-- frames in the log that claim to come from the node manager are compared with it. It also counts them, since the operator did not do them.
local function tell(p, frame, number, lane)
  redis.call('RPUSH', p .. 'in', frame)
  redis.call('HSET', p .. 'route', 'frame', frame)
  redis.call('HINCRBY', p .. 'route', 'told', 1)
  redis.call('RPUSH', p .. 'sizes', #frame .. ' ' .. number .. ' ' .. lane)
  redis.call('INCRBY', p .. 'bytes', #frame)
  ring(p, 'parked')
  return num(p .. 'base', 1) + redis.call('LLEN', p .. 'in') - 1
end

-- ARGV: frame, its number in its lane, the lane.
local function tell_slot(keys, a) return tell(keys[1], a[1], a[2], a[3]) end

-- Set the route of a slot, unless it has a newer one. ARGV: version, table.
local function route(keys, a)
  local p = keys[1]
  if num_of(p .. 'route', 'v') >= tonumber(a[1]) then return 0 end
  redis.call('HSET', p .. 'route', 'v', a[1], 'table', a[2])
  return 1
end

-- A move of key groups: in one step, frames by an older route are refused from now on, and `frame` is the next one in the log. Repeating
-- a version changes nothing, except with `again`: the frame is appended once more, since the log that had it is gone. Returns the
-- frame's number and the last answered one. ARGV: version, table, frame, its lane, again (0 or 1).
local function cut(keys, a)
  local p, version = keys[1], tonumber(a[1])
  local present, at = num_of(p .. 'route', 'v'), num_of(p .. 'route', 'cut')
  if present < version or (present == version and a[5] == '1') then
    at = tell(p, a[3], a[1], a[4])
    redis.call('HSET', p .. 'route', 'v', a[1], 'table', a[2], 'cut', string.format('%.0f', at))
  end
  return {at, num(p .. 'emitted', 0)}
end

-- Keep frames from `seq` on from being trimmed for a while. ARGV: pin, seq, lease_ms (0 releases). Returns the base.
local function pin(keys, a)
  local p = keys[1]
  if a[3] == '0' then
    try('HDEL', p .. 'pins', a[1])
  else
    local entry = a[2] .. ':' .. string.format('%.0f', now_ms() + tonumber(a[3]))
    if not try('HSET', p .. 'pins', a[1], entry) then
      redis.call('DEL', p .. 'pins')
      redis.call('HSET', p .. 'pins', a[1], entry)
    end
  end
  return num(p .. 'base', 1)
end

-- Make `token` the owner unless the current one is newer. Called on the state server first, then on the queue server.
local function promote(keys, a)
  local p = keys[1]
  local owner = num(p .. 'owner', 0)
  if tonumber(a[1]) < owner then return {'FENCED', owner} end
  redis.call('SET', p .. 'owner', a[1])
  ring(p, 'parked')
  ring(p, 'waiting')
  return {'OWNER', num(p .. 'emitted', 0)}
end

-- Queue server: restart, after `seq`, the log of a slot whose keys an operator broke, as if the server had been lost: frames,
-- answers and lanes are removed, and their producers get LaneExpired. In one step, so that no frame is accepted in between.
-- ARGV: token, seq.
local function anew(keys, a)
  local p = keys[1]
  local owner = num(p .. 'owner', 0)
  if tonumber(a[1]) < owner then return {'FENCED', owner} end
  for _, key in ipairs(redis.call('KEYS', p .. '*')) do
    if key ~= p .. 'route' and key ~= p .. 'status' then redis.call('UNLINK', key) end
  end
  redis.call('MSET', p .. 'owner', a[1], p .. 'emitted', a[2], p .. 'base', string.format('%.0f', tonumber(a[2]) + 1))
  return {'OWNER', tonumber(a[2])}
end

-- State server: the place of a session's run in the order of its runs, and the call that uses it. Runs are ordered by their plans, which
-- the registry numbers, so that every slot and node finds the same order: plan * 2048 + 1, exact as a number until the year 2109. Runs of
-- one plan (a query restarted from the same DataFrame; limits.py has 2048 too) are ordered as they are first seen. A run first seen after
-- a run of a later plan is too late: -1. ARGV: session, run, call, plan.
local RUNS_OF_A_PLAN = 2048

local function run(keys, a)
  local key = keys[1] .. 'runs:' .. a[1]
  local known = redis.call('HGET', key, a[2])
  if not known then
    local plan = tonumber(a[4])
    local order = plan * RUNS_OF_A_PLAN + 1
    for _, other in ipairs(redis.call('HVALS', key)) do
      local others, of_plan = other:match('^(%d+) (%d+)')
      if tonumber(of_plan) > plan then return {-1, a[3]} end
      order = math.max(order, tonumber(others) + 1) -- changes it only for runs of one plan, and for those that a driver's clock has ordered
    end
    known = string.format('%.0f', order) .. ' ' .. a[4] .. ' ' .. a[3]
    redis.call('HSET', key, a[2], known)
  end
  redis.call('PERSIST', key) -- a dropped session that is used again keeps its order
  local order, call = known:match('^(%d+) %d+ (.*)$')
  return {tonumber(order), call}
end

-- Queue server: note that a lane of a keyed session is being opened. Forgets a few lanes that are gone. ARGV: session, lane.
local function uses(keys, a)
  local p, now = keys[1], now_ms()
  local key = p .. 'used:' .. a[1]
  for _, lane in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now - 60000, 'LIMIT', 0, 4)) do
    if redis.call('EXISTS', p .. 'lane:' .. lane) == 0 then redis.call('ZREM', key, lane) end
  end
  redis.call('ZADD', key, string.format('%.0f', now), a[2])
  redis.call('PEXPIRE', key, 86400000)
  return 1
end

-- Arm a reader's doorbell, then check again, so that nothing that came in between is missed.
-- ARGV: reader, cursor, token, set ('parked': woken by events; 'waiting': a standby, woken by a promotion only).
-- Returns 1 if there is something to do at once, and then rings the bell too, so that the caller may send this call, the blocking
-- pop of its bell and the next read in one go.
local function park(keys, a)
  local p = keys[1]
  local bell = p .. 'bell:' .. a[1]
  local is = redis.call('MGET', p .. 'owner', p .. 'base')
  local owner = is[1] or '0'
  redis.call('DEL', bell)
  local due
  if a[4] == 'waiting' then
    due = owner == a[3]
  else
    due = owner ~= a[3] or tonumber(is[2] or 1) + redis.call('LLEN', p .. 'in') > tonumber(a[2])
  end
  if due then
    ring_bell(bell)
    return 1
  end
  redis.call('SADD', p .. a[4], a[1])
  return 0
end

-- Arm the doorbell of a lane's collector. ARGV: lane, ttl_ms. Returns 1: there are answers; 0: armed; -1: the lane is gone.
local function park_lane(keys, a)
  local p = keys[1]
  local key = p .. 'lane:' .. a[1]
  local bell = p .. 'bell:' .. a[1]
  redis.call('DEL', bell)
  local gone = redis.call('PEXPIRE', key, a[2]) == 0
  if gone or redis.call('EXISTS', p .. 'out:' .. a[1]) == 1 then
    ring_bell(bell)
    return gone and -1 or 1
  end
  redis.call('HSET', key, 'parked', 1)
  return 0
end

local function forget_lane(p, lane)
  redis.call('DEL', p .. 'lane:' .. lane, p .. 'out:' .. lane, p .. 'bell:' .. lane)
  redis.call('SREM', p .. 'lanes', lane)
end

-- ARGV: lane, ttl_ms, schema id, schema, optionally the id of the producer's connection, with which the lane ends.
-- Also removes a few lanes whose lease has run out.
local function open(keys, a)
  local p = keys[1]
  for _, lane in ipairs(redis.call('SRANDMEMBER', p .. 'lanes', 4)) do
    if redis.call('EXISTS', p .. 'lane:' .. lane) == 0 then forget_lane(p, lane) end
  end
  local key = p .. 'lane:' .. a[1]
  redis.call('HSETNX', key, 'last', 0)
  if a[5] then redis.call('HSET', key, 'client', a[5]) end
  redis.call('PEXPIRE', key, a[2])
  redis.call('SADD', p .. 'lanes', a[1])
  redis.call('SET', p .. 'schema:' .. a[3], a[4])
  return tonumber(redis.call('HGET', key, 'last'))
end

local function close(keys, a)
  forget_lane(keys[1], a[1])
  return 1
end

-- ARGV: JSON saying why the slot does not serve, or '' when it does. Wakes parked lanes, which read it.
local function status(keys, a)
  local p = keys[1]
  if a[1] == '' then redis.call('DEL', p .. 'status') else redis.call('SET', p .. 'status', a[1]) end
  for _, lane in ipairs(try('SMEMBERS', p .. 'lanes') or {}) do
    if redis.call('EXISTS', p .. 'lane:' .. lane) == 0 then forget_lane(p, lane) else pcall(ring_lane, p, lane) end
  end
  return 1
end

-- State server: the stored form of groups (pieces.py). The values of a group are a piece: `g:{piece}`, its base, and `d:{piece}`, the
-- changes since. The manifest `m:{session}` has for each group `piece changes base_bytes change_bytes meta`. A savepoint
-- (savepoints.py) is a copy of all manifests: `savepoint:{name}` has info, ckpt and a field per session, `savepoint:{name}:sessions`
-- and `savepoint:{name}:m:{session}` are copies, for a rollback also `savepoint:{name}:dead` and so on. `savepoints`: name ->
-- `made until_ms held_bytes`, made below 0: it was given up. A piece is removed in the same step as the last manifest entry that names it.
local LETTERS = {'dead', 'pending', 'replay'}
local GIVEN_UP, REWOUND = -1, -2

local function piece_of(entry) return entry and entry:match('^(%S+) %d+ %d+ %d+ ') end

local function of_savepoint(p, name) return p .. 'savepoint:' .. name end

-- Whether a savepoint other than `but` names this piece for this group.
local function pinned(p, s, n, piece, found, but)
  for name in pairs(found) do
    if name ~= but and piece_of(try('HGET', of_savepoint(p, name) .. ':m:' .. s, n)) == piece then return true end
  end
  return false
end

local function remove_piece(p, piece) redis.call('UNLINK', p .. 'g:' .. piece, p .. 'd:' .. piece) end

-- Remove a savepoint, and the pieces that only it names. `found`: all savepoints.
local function unpin(p, name, found)
  local at = of_savepoint(p, name)
  for _, field in ipairs(try('HKEYS', at) or {}) do
    local s = field:match('^session (.*)$')
    local flat = s and try('HGETALL', at .. ':m:' .. s) or {}
    for i = 1, #flat, 2 do
      local n, piece = flat[i], piece_of(flat[i + 1])
      if piece and piece_of(try('HGET', p .. 'm:' .. s, n)) ~= piece and not pinned(p, s, n, piece, found, name) then
        remove_piece(p, piece)
      end
    end
    if s then redis.call('UNLINK', at .. ':m:' .. s) end
  end
  for _, kind in ipairs(LETTERS) do redis.call('UNLINK', at .. ':' .. kind) end
  redis.call('UNLINK', at, at .. ':sessions')
  try('HDEL', p .. 'savepoints', name)
  found[name] = nil
end

-- All savepoints, also those given up: name -> {made, until_ms, held}. Removes those whose lease has ended, except `but`.
local function savepoints(p, but)
  local found, ended, now, flat = {}, {}, now_ms(), try('HGETALL', p .. 'savepoints') or {}
  for i = 1, #flat, 2 do
    local made, till, held = flat[i + 1]:match('^(-?%d+) (%d+) (%d+)$')
    found[flat[i]] = {tonumber(made), till, tonumber(held)}
    if not till or (tonumber(till) < now and flat[i] ~= but) then ended[#ended + 1] = flat[i] end
  end
  for _, name in ipairs(ended) do unpin(p, name, found) end
  return found
end

local function note(p, name, made, till, held)
  local entry = string.format('%.0f %.0f %.0f', made, till, held)
  if not try('HSET', p .. 'savepoints', name, entry) then
    redis.call('DEL', p .. 'savepoints')
    redis.call('HSET', p .. 'savepoints', name, entry)
  end
end

local function give_up(p, name, why, found)
  local till = found[name][2]
  unpin(p, name, found)
  note(p, name, why, tonumber(till), 0)
end

-- Make a savepoint. ARGV: name, lease_ms, info, whether it includes the dead letters.
local function savepoint(keys, a)
  local p, name, found = keys[1], a[1], savepoints(keys[1])
  unpin(p, name, found)
  local at, now = of_savepoint(p, name), now_ms()
  redis.call('HSET', at, 'info', a[3], 'ckpt', redis.call('GET', p .. 'ckpt') or '')
  redis.call('COPY', p .. 'sessions', at .. ':sessions')
  for _, s in ipairs(redis.call('HKEYS', p .. 'sessions')) do
    redis.call('HSET', at, 'session ' .. s, 1)
    redis.call('COPY', p .. 'm:' .. s, at .. ':m:' .. s)
  end
  for _, kind in ipairs(LETTERS) do
    if a[4] == '1' then redis.call('COPY', p .. kind, at .. ':' .. kind) end
  end
  note(p, name, now, now + tonumber(a[2]), 0)
  return 1
end

-- ARGV: name, lease_ms. Returns 1, or why the savepoint is gone: 0, or the value stored in place of the time at which it was made.
local function hold_savepoint(keys, a)
  local p, name = keys[1], a[1]
  local it = savepoints(p)[name]
  if not it then return 0 end
  if it[1] < 0 then return it[1] end
  note(p, name, it[1], now_ms() + tonumber(a[2]), it[3])
  return 1
end

-- ARGV: name.
local function drop_savepoint(keys, a)
  unpin(keys[1], a[1], savepoints(keys[1]))
  return 1
end

-- Remove these groups' pieces, which the owner is about to replace or drop, except those that savepoints name. Beyond the
-- bound the oldest savepoint is given up. ARGV: session, bound, groups.
local function replaced(keys, a)
  local p, s, found = keys[1], a[1], savepoints(keys[1])
  for i = 3, #a do
    local n = a[i]
    local entry = redis.call('HGET', p .. 'm:' .. s, n)
    local piece = piece_of(entry)
    if piece then
      local base, changes = entry:match('^%S+ %d+ (%d+) (%d+) ')
      local total = 0
      for name, it in pairs(found) do
        if piece_of(try('HGET', of_savepoint(p, name) .. ':m:' .. s, n)) == piece then
          it[3] = it[3] + base + changes
          note(p, name, it[1], tonumber(it[2]), it[3])
        end
        total = total + it[3]
      end
      while total > tonumber(a[2]) do
        local oldest
        for name, it in pairs(found) do
          if it[1] >= 0 and it[3] > 0 and (not oldest or it[1] < found[oldest][1]) then oldest = name end
        end
        total = total - found[oldest][3]
        give_up(p, oldest, GIVEN_UP, found)
      end
      if not pinned(p, s, n, piece, found) then remove_piece(p, piece) end
    end
  end
  return 1
end

local function move(from, to)
  if redis.call('EXISTS', from) == 1 then redis.call('RENAME', from, to) end
end

-- Let all readers of the changelog load again, since the state does not continue from their positions. `why` replaces these positions.
local function load_again(p, why)
  for _, name in ipairs(try('HKEYS', p .. 'readers') or {}) do
    local till = redis.call('HGET', p .. 'readers', name):match('%d+$')
    redis.call('HSET', p .. 'readers', name, why .. ' ' .. (till or 0))
  end
end

-- Go back to a savepoint, which is removed; in the step of the first checkpoint made from it. Later changes are cut off, so other
-- savepoints are given up, and readers of the changelog have to load again. ARGV: name.
local function rewind(keys, a)
  local p, found = keys[1], savepoints(keys[1], a[1])
  local at = of_savepoint(p, a[1])
  if redis.call('EXISTS', at) == 0 then return 0 end
  for name, it in pairs(found) do
    if name ~= a[1] and it[1] >= 0 then give_up(p, name, REWOUND, found) end
  end
  for _, s in ipairs(redis.call('HKEYS', p .. 'sessions')) do
    local flat = redis.call('HGETALL', p .. 'm:' .. s)
    for i = 1, #flat, 2 do
      local piece = piece_of(flat[i + 1])
      if piece and piece_of(redis.call('HGET', at .. ':m:' .. s, flat[i])) ~= piece then remove_piece(p, piece) end
    end
    redis.call('DEL', p .. 'm:' .. s)
  end
  for _, s in ipairs(redis.call('HKEYS', at .. ':sessions')) do
    move(at .. ':m:' .. s, p .. 'm:' .. s)
    local flat = redis.call('HGETALL', p .. 'm:' .. s)
    for i = 1, #flat, 2 do
      local piece, changes = flat[i + 1]:match('^(%S+) (%d+) ')
      if changes == '0' then redis.call('DEL', p .. 'd:' .. piece) else redis.call('LTRIM', p .. 'd:' .. piece, 0, changes - 1) end
    end
  end
  redis.call('DEL', p .. 'sessions', p .. 'riding', p .. 'ckpt')
  move(at .. ':sessions', p .. 'sessions')
  for _, kind in ipairs(LETTERS) do
    redis.call('UNLINK', p .. kind)
    move(at .. ':' .. kind, p .. kind)
  end
  local ckpt = redis.call('HGET', at, 'ckpt')
  if ckpt ~= '' then redis.call('SET', p .. 'ckpt', ckpt) end
  load_again(p, REWOUND)
  unpin(p, a[1], {})
  return 1
end

-- State server: key groups move to another slot (moving.py). They leave the state of the source in the step of a checkpoint, wait as
-- `savepoint:moved-{version}`, are delivered to the target as `savepoint:adopted-{version}`, and become part of its state in the step of a
-- checkpoint there. Each step moves all of it: manifests and pieces of the groups, dead letters, the sessions' records, and copies of the
-- event times, which both slots need.
local MOVED, ADOPTED, GROUPS_MOVED = 'moved-', 'adopted-', -3
local NEVER = 253402300799000 -- the end of the year 9999, in ms
local LETTER_OF_GROUP = '^k|.*|%-?%d+|(%-?%d+)|%-?%d+|%-?%d+|%-?%d+|%-?%d+$'

local function of_event_time(n) return n:sub(1, 1) == '-' end

-- Copy the piece's values, as far as the manifest counts them, to another name; returns the entry for the copy.
local function copy_piece(p, entry, new)
  local piece, changes = entry:match('^(%S+) (%d+) ')
  local base = redis.call('GET', p .. 'g:' .. piece)
  if base then redis.call('SET', p .. 'g:' .. new, base) end
  if changes ~= '0' then
    for _, change in ipairs(redis.call('LRANGE', p .. 'd:' .. piece, 0, changes - 1)) do redis.call('RPUSH', p .. 'd:' .. new, change) end
  end
  return new .. entry:sub(#piece + 1)
end

-- Called after all other commands of the checkpoint that covers the cut. ARGV: version, groups.
local function hand_over(keys, a)
  local p, wanted = keys[1], {}
  local at = of_savepoint(p, MOVED .. a[1])
  for i = 2, #a do wanted[a[i]] = true end
  for _, s in ipairs(redis.call('HKEYS', p .. 'sessions')) do
    redis.call('HSET', at .. ':sessions', s, redis.call('HGET', p .. 'sessions', s))
    local flat = redis.call('HGETALL', p .. 'm:' .. s)
    for i = 1, #flat, 2 do
      local n, entry = flat[i], flat[i + 1]
      if wanted[n] then
        redis.call('HSET', at .. ':m:' .. s, n, entry)
        redis.call('HDEL', p .. 'm:' .. s, n)
      elseif of_event_time(n) then
        redis.call('HSET', at .. ':m:' .. s, n, copy_piece(p, entry, piece_of(entry) .. '@' .. a[1]))
      end
    end
  end
  for _, kind in ipairs(LETTERS) do
    for _, name in ipairs(redis.call('HKEYS', p .. kind)) do
      if wanted[name:match(LETTER_OF_GROUP)] then
        redis.call('HSET', at .. ':' .. kind, name, redis.call('HGET', p .. kind, name))
        redis.call('HDEL', p .. kind, name)
      end
    end
  end
  redis.call('HSET', at, 'info', a[1])
  note(p, MOVED .. a[1], GIVEN_UP, NEVER, 0) -- keeps the pieces when another savepoint ends
  load_again(p, GROUPS_MOVED)
  return 1
end

-- Deliver what was handed over, and put the group map in force; called by the node manager, which may write both slots' keys. Pieces
-- that a savepoint names are copied, others are renamed. ARGV: prefix of the other slot, version, key of the map, the map.
local function deliver(keys, a)
  local p, to, version = keys[1], a[1], a[2]
  local from, at, found = of_savepoint(p, MOVED .. version), of_savepoint(to, ADOPTED .. version), savepoints(p)
  if redis.call('EXISTS', from) == 0 then return 0 end
  for _, s in ipairs(redis.call('HKEYS', from .. ':sessions')) do
    local flat = redis.call('HGETALL', from .. ':m:' .. s)
    for i = 1, #flat, 2 do
      local n, entry = flat[i], flat[i + 1]
      local piece = piece_of(entry)
      local new, how = 'v' .. version .. '.' .. piece, pinned(p, s, n, piece, found, MOVED .. version) and 'COPY' or 'RENAME'
      for _, kind in ipairs({'g:', 'd:'}) do
        if redis.call('EXISTS', p .. kind .. piece) == 1 then redis.call(how, p .. kind .. piece, to .. kind .. new) end
      end
      redis.call('HSET', at .. ':m:' .. s, n, new .. entry:sub(#piece + 1))
    end
    redis.call('UNLINK', from .. ':m:' .. s)
  end
  move(from .. ':sessions', at .. ':sessions')
  for _, kind in ipairs(LETTERS) do move(from .. ':' .. kind, at .. ':' .. kind) end
  redis.call('RENAME', from, at)
  redis.call('HDEL', p .. 'savepoints', MOVED .. version)
  redis.call('SET', a[3], a[4])
  return 1
end

-- Remove what was handed over to a slot of another node, which has it now, except pieces that a savepoint names. ARGV: version.
local function handed_on(keys, a)
  local p, name, found = keys[1], MOVED .. a[1], savepoints(keys[1])
  local at = of_savepoint(p, name)
  for _, s in ipairs(redis.call('HKEYS', at .. ':sessions')) do
    local flat = redis.call('HGETALL', at .. ':m:' .. s)
    for i = 1, #flat, 2 do
      local piece = piece_of(flat[i + 1])
      if not pinned(p, s, flat[i], piece, found, name) then remove_piece(p, piece) end
    end
    redis.call('UNLINK', at .. ':m:' .. s)
  end
  for _, kind in ipairs(LETTERS) do redis.call('UNLINK', at .. ':' .. kind) end
  redis.call('UNLINK', at, at .. ':sessions')
  redis.call('HDEL', p .. 'savepoints', name)
  return 1
end

-- Deliver what a slot of another node has handed over from its copy at `taking:{copy}:*` to this slot, like `deliver`. Once for each
-- version: 0 if that was done before. -1 if the copy is incomplete. ARGV: copy, version.
local function take(keys, a)
  local p, staged, version = keys[1], keys[1] .. 'taking:' .. a[1] .. ':', a[2]
  local at, entries = of_savepoint(p, ADOPTED .. version), {}
  if num(p .. 'taken', 0) >= tonumber(version) then return 0 end
  local function keep(from, to)
    if redis.call('EXISTS', from) == 1 then
      redis.call('RENAME', from, to)
      redis.call('PERSIST', to)
    end
  end
  for _, s in ipairs(redis.call('HKEYS', staged .. 'sessions')) do
    local flat = redis.call('HGETALL', staged .. 'm:' .. s)
    for i = 1, #flat, 2 do
      local piece, changes, base = flat[i + 1]:match('^(%S+) (%d+) (%d+) ')
      local short = redis.call('STRLEN', staged .. 'g:' .. piece) ~= tonumber(base)
      if short or redis.call('LLEN', staged .. 'd:' .. piece) < tonumber(changes) then return -1 end
      entries[#entries + 1] = {s, flat[i], piece, flat[i + 1]:sub(#piece + 1)}
    end
  end
  for _, e in ipairs(entries) do
    local new = 'v' .. version .. '.' .. e[3]
    for _, kind in ipairs({'g:', 'd:'}) do keep(staged .. kind .. e[3], p .. kind .. new) end
    redis.call('HSET', at .. ':m:' .. e[1], e[2], new .. e[4])
    redis.call('HDEL', staged .. 'm:' .. e[1], e[2])
  end
  keep(staged .. 'sessions', at .. ':sessions')
  for _, kind in ipairs(LETTERS) do keep(staged .. kind, at .. ':' .. kind) end
  redis.call('HSET', at, 'info', version)
  redis.call('SET', p .. 'taken', version)
  return 1
end

-- Called after all other commands of the adopting slot's checkpoint, whose own session records and event times stay, as do groups that
-- the checkpoint has just written, in another form or with further changes to the same piece. ARGV: version.
local function take_in(keys, a)
  local p = keys[1]
  local at = of_savepoint(p, ADOPTED .. a[1])
  for _, s in ipairs(redis.call('HKEYS', at .. ':sessions')) do
    if redis.call('HEXISTS', p .. 'sessions', s) == 0 then
      redis.call('HSET', p .. 'sessions', s, redis.call('HGET', at .. ':sessions', s))
    end
    local flat = redis.call('HGETALL', at .. ':m:' .. s)
    for i = 1, #flat, 2 do
      local have = redis.call('HGET', p .. 'm:' .. s, flat[i])
      if not have then
        redis.call('HSET', p .. 'm:' .. s, flat[i], flat[i + 1])
      elseif piece_of(have) ~= piece_of(flat[i + 1]) then
        remove_piece(p, piece_of(flat[i + 1]))
      end
    end
    redis.call('UNLINK', at .. ':m:' .. s)
  end
  for _, kind in ipairs(LETTERS) do
    local flat = redis.call('HGETALL', at .. ':' .. kind)
    for i = 1, #flat, 2 do redis.call('HSET', p .. kind, flat[i], flat[i + 1]) end
    redis.call('UNLINK', at .. ':' .. kind)
  end
  redis.call('UNLINK', at, at .. ':sessions')
  load_again(p, GROUPS_MOVED)
  return 1
end

-- State server: the changelog (changelog.py). `changelog`: a stream; an entry's id is the bytes up to the end of its checkpoint, and a
-- sequence number. The first has the field `head`, the others a field `group session` for each group; a group below 0 holds event times.
-- `logged`: the last id. `readers`: name -> `position until_ms`, below 0: the reader has to load again. `reading`: exists while there may
-- be readers; the owner watches it. A reader's instance may write these keys: no checkpoint may fail because of their content.
local CHANGELOG = {'changelog', 'logged', 'readers', 'reading'}
-- Values that are passed to one XADD: Lua's stack holds at most 8,000.
local FIELDS = 2000

local function forget_changelog(p)
  for _, kind in ipairs(CHANGELOG) do redis.call('UNLINK', p .. kind) end
end

-- Live readers: name -> {position, until_ms}. Those whose lease has ended are removed.
local function readers(p)
  local found, now, flat = {}, now_ms(), try('HGETALL', p .. 'readers') or {}
  for i = 1, #flat, 2 do
    local position, till = flat[i + 1]:match('^(-?%d+) (%d+)$')
    if not till or tonumber(till) < now then
      redis.call('HDEL', p .. 'readers', flat[i])
    else
      found[flat[i]] = {tonumber(position), till}
    end
  end
  return found
end

-- Keep the entries after the position of the reader that is furthest behind; everything expires with the last lease.
local function settle(p, found)
  local lowest
  for _, r in pairs(found) do
    if r[1] >= 0 and (not lowest or r[1] < lowest) then lowest = r[1] end
  end
  if next(found) == nil then return forget_changelog(p) end
  local last = redis.call('PTTL', p .. 'readers')
  if lowest then
    try('XTRIM', p .. 'changelog', 'MINID', string.format('%.0f', lowest + 1))
    redis.call('PEXPIRE', p .. 'changelog', last)
  else
    redis.call('UNLINK', p .. 'changelog')
  end
  redis.call('PEXPIRE', p .. 'logged', last)
  redis.call('PEXPIRE', p .. 'reading', last)
end

local function place(p, name, position, lease_ms)
  local entry = string.format('%.0f %.0f', position, now_ms() + lease_ms)
  if not try('HSET', p .. 'readers', name, entry) then
    redis.call('DEL', p .. 'readers')
    redis.call('HSET', p .. 'readers', name, entry)
  end
  redis.call('PEXPIRE', p .. 'readers', lease_ms)
end

-- ARGV: name, lease_ms. Returns the position after all entries.
local function join(keys, a)
  local p = keys[1]
  local at = tonumber(try('GET', p .. 'logged') or 0) or 0
  place(p, a[1], at, tonumber(a[2]))
  redis.call('SET', p .. 'reading', 1, 'NX')
  settle(p, readers(p))
  return at
end

-- ARGV: name, position, lease_ms. Returns 1, or why it is no reader any more: 0, or the value stored in place of its position.
local function hold(keys, a)
  local p = keys[1]
  local reader = readers(p)[a[1]]
  if not reader then return 0 end
  if reader[1] < 0 then return reader[1] end
  place(p, a[1], tonumber(a[2]), tonumber(a[3]))
  settle(p, readers(p))
  return 1
end

-- ARGV: name.
local function leave(keys, a)
  local p = keys[1]
  local removed = try('HDEL', p .. 'readers', a[1])
  settle(p, readers(p))
  return removed or 0
end

-- Called within the owner's checkpoint. ARGV: bound, head, then for each group its field and its part.
local function append(keys, a)
  local p, live = keys[1], false
  local found, at = readers(p), tonumber(try('GET', p .. 'logged') or 0) or 0
  for i = 2, #a do at = at + #a[i] end
  for name, r in pairs(found) do
    if r[1] >= 0 and at - r[1] > tonumber(a[1]) then
      r[1] = -1
      redis.call('HSET', p .. 'readers', name, '-1 ' .. r[2])
    end
    live = live or r[1] >= 0
  end
  if live then
    redis.call('SET', p .. 'logged', string.format('%.0f', at))
    local added = try('XADD', p .. 'changelog', string.format('%.0f-0', at), 'head', a[2])
    for i = 3, #a, FIELDS do
      added = added and try('XADD', p .. 'changelog', string.format('%.0f-%d', at, i), unpack(a, i, math.min(i + FIELDS - 1, #a)))
    end
    if not added then forget_changelog(p) end
  end
  settle(p, readers(p))
  return 1
end

-- The entries after a position, for a reader of some groups: heads, the parts of these groups, and those that hold event times.
-- ARGV: position, groups.
local function entries(keys, a)
  local wanted, found = {}, {}
  for i = 2, #a do wanted[a[i]] = true end
  for _, entry in ipairs(redis.call('XRANGE', keys[1] .. 'changelog', '(' .. a[1] .. '-18446744073709551615', '+')) do
    local id, fields, left = entry[1], entry[2], {}
    for i = 1, #fields, 2 do
      local number = fields[i]:match('^%d+')
      if not number or wanted[number] then
        left[#left + 1] = fields[i]
        left[#left + 1] = fields[i + 1]
      end
    end
    if #left > 0 then found[#found + 1] = {id, left} end
  end
  return found
end

redis.register_function('udo_join', join)
redis.register_function('udo_entries', entries)
redis.register_function('udo_hold', hold)
redis.register_function('udo_leave', leave)
redis.register_function('udo_append', append)
redis.register_function('udo_savepoint', savepoint)
redis.register_function('udo_hold_savepoint', hold_savepoint)
redis.register_function('udo_drop_savepoint', drop_savepoint)
redis.register_function('udo_replaced', replaced)
redis.register_function('udo_rewind', rewind)
redis.register_function('udo_hand_over', hand_over)
redis.register_function('udo_deliver', deliver)
redis.register_function('udo_take_in', take_in)
redis.register_function('udo_handed_on', handed_on)
redis.register_function('udo_take', take)
redis.register_function('udo_accept', accept)
redis.register_function('udo_emit', emit)
redis.register_function('udo_trim', trim_covered)
redis.register_function('udo_tell', tell_slot)
redis.register_function('udo_route', route)
redis.register_function('udo_cut', cut)
redis.register_function('udo_pin', pin)
redis.register_function('udo_mirror', mirror)
redis.register_function('udo_promote', promote)
redis.register_function('udo_anew', anew)
redis.register_function('udo_run', run)
redis.register_function('udo_uses', uses)
redis.register_function('udo_park', park)
redis.register_function('udo_park_lane', park_lane)
redis.register_function('udo_open', open)
redis.register_function('udo_close', close)
redis.register_function('udo_status', status)
