-- A bell rings once per arming: arming empties it, and ringing disarms it in the same step.
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
      if over and at == first and at <= seq then
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
-- frames in the log that claim to come from the node manager are compared with it. It also counts such frames: they are not the operator's.
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
redis.register_function('udo_uses', uses)
redis.register_function('udo_park', park)
redis.register_function('udo_park_lane', park_lane)
redis.register_function('udo_open', open)
redis.register_function('udo_close', close)
redis.register_function('udo_status', status)
